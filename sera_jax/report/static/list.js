// The list of saved trees: filters, pages.

const PAGE = 50;
const FILTERS = [
  ["run", "run"], ["step", "step"], ["objective", "objective"], ["family", "family"],
  ["tier", "tier"], ["success", "success"], ["depth", "depth"],
];
const listState = { chosen: {}, text: "", page: 0 };

function facet(row, key, data) {
  if (key === "run") return data.runs[row.run].name;
  if (key === "success") return row.reward > 0 ? "yes" : "no";
  return String(row[key] ?? "");
}

function matching(data) {
  const chosen = Object.entries(listState.chosen).filter(([, value]) => value !== "");
  const text = listState.text.toLowerCase();
  return data.trees.map((row, index) => ({ row, index })).filter(({ row }) =>
    chosen.every(([key, value]) => facet(row, key, data) === value) && row.task.toLowerCase().includes(text));
}

function select(key, label, data, changed) {
  const values = [...new Set(data.trees.map((row) => facet(row, key, data)))];
  if (key === "run" && values.length < 2) return null;
  values.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const option = (value, text) => h("option", { value, selected: listState.chosen[key] === value }, text);
  return h("label", {}, label, h("select", { name: key, onchange: (event) => { listState.chosen[key] = event.target.value; changed(); } },
    option("", "all"), values.map((value) => option(value, value.replaceAll("_", " ") || "–"))));
}

function treeRow({ row, index }, data) {
  const cell = (label, value, kind) => h("td", { "data-label": label, class: kind }, value);
  const open = () => { location.hash = `#/tree/${index}`; };
  return h("tr", { class: "tree", onclick: open },
    cell("", h("a", { href: `#/tree/${index}` }, outcomeMark(row.reward > 0), " ", h("span", { class: "task" }, flat(row.task))), "name"),
    data.runs.length > 1 && cell("run", data.runs[row.run].name),
    cell("step", row.step ?? "–", "num"), cell("objective", row.objective || "–"),
    cell("family", row.family.replaceAll("_", " ")), cell("tier", row.tier),
    cell("nodes", row.nodes, "num"), cell("depth", row.depth, "num"), cell("forks", row.forks || "–", "num"),
    cell("tokens", number(row.tokens), "num"));
}

function outcomeMark(outcome) {
  if (outcome === null || outcome === undefined) return h("span", { class: "mark unknown", title: "not verified" }, "?");
  return outcome ? h("span", { class: "mark good", title: "success" }, "✓") : h("span", { class: "mark bad", title: "failure" }, "✗");
}

function listPage(data) {
  const count = h("p", { class: "note" }), body = h("tbody"), pager = h("p", { class: "pager" });
  const show = () => {
    const found = matching(data), pages = Math.max(1, Math.ceil(found.length / PAGE));
    listState.page = Math.min(listState.page, pages - 1);
    const shown = found.slice(listState.page * PAGE, (listState.page + 1) * PAGE);
    const successes = found.filter(({ row }) => row.reward > 0).length;
    count.textContent = `${plural(found.length, "tree")} of ${data.trees.length}${data.saved > data.trees.length ? ` (a sample of the ${data.saved} saved)` : ""}, ${successes} successful`;
    body.replaceChildren(...shown.map((one) => treeRow(one, data)));
    const go = (by) => () => { listState.page += by; show(); scrollTo(0, 0); };
    pager.replaceChildren(...(pages < 2 ? [] : [
      h("button", { disabled: listState.page === 0, onclick: go(-1) }, "‹ back"), ` page ${listState.page + 1} of ${pages} `,
      h("button", { disabled: listState.page === pages - 1, onclick: go(1) }, "next ›")]));
  };
  const changed = () => { listState.page = 0; show(); };
  const search = h("label", { class: "wide" }, "task", h("input", { type: "search", name: "task", placeholder: "part of its name", value: listState.text, oninput: (event) => { listState.text = event.target.value; changed(); } }));
  const heads = ["task", ...(data.runs.length > 1 ? ["run"] : []), "step", "objective", "family", "tier", "nodes", "depth", "forks", "tokens"];
  const numbers = new Set(["step", "nodes", "depth", "forks", "tokens"]);
  show();
  if (!data.trees.length) return [h("h1", {}, "Trees"), h("p", { class: "empty" }, "This run saved no trees (config.run.save_trees).")];
  return [h("h1", {}, "Trees"),
    h("form", { class: "filters card", onsubmit: (event) => event.preventDefault() }, FILTERS.map(([key, label]) => select(key, label, data, changed)), search),
    count, h("div", { class: "card" }, h("table", { class: "trees" }, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { class: numbers.has(text) ? "num" : null }, text)))), body)), pager];
}
