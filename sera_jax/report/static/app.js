// Which page the address asks for.

const cache = new Map();

async function treeAt(index) {
  if (!cache.has(index)) {
    cache.clear(); // one tree at a time: they can be large
    cache.set(index, { ...(await unpack(`tree-${index}`)), index });
  }
  return cache.get(index);
}

function tabs(data, active) {
  const tab = (name, text) => h("a", { href: `#/${name}`, "aria-current": active === name ? "page" : null }, text);
  document.getElementById("top").replaceChildren(h("b", {}, "sera_jax"), h("nav", {}, tab("report", "Report"), tab("trees", `Trees (${data.trees.length})`)),
    h("span", { class: "note" }, `${data.title}, written ${data.written}`));
}

let shownTree = null;

async function show(data) {
  const [, page, index, key] = location.hash.split("/");
  const view = document.getElementById("view");
  const row = data.trees[Number(index)];
  const sameTree = page === "tree" && shownTree === index;
  let content;
  if (page === "tree" && row) content = treePage(await treeAt(Number(index)), decodeURIComponent(key || ""), data);
  else content = page === "trees" || page === "tree" ? listPage(data) : overviewPage(data);
  tabs(data, page === "trees" || page === "tree" ? "trees" : "report");
  view.replaceChildren(...content.flat(Infinity).filter(Boolean));
  shownTree = page === "tree" ? index : null;
  if (!sameTree) return scrollTo(0, 0);
  const node = document.getElementById("node"), top = node.getBoundingClientRect().top;
  if (top < 0 || top > 0.7 * innerHeight) node.scrollIntoView();
}

async function start() {
  const data = await unpack("overview");
  addEventListener("hashchange", () => show(data));
  await show(data);
}

start().catch((error) => {
  document.getElementById("view").replaceChildren(h("p", { class: "empty" }, `This report cannot be read: ${error.message}. A browser of 2023 or newer is needed.`));
  throw error;
});
