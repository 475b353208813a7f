// One tree: the recursion drawn from left to right, coloured by what one asks about.

const ROW = 54, BOX = 42;
const MODES = ["outcome", "status", "reward", "advantage"];
const treeState = { mode: "outcome", tokens: false };

// Every node by a key of its own: its id, and for attempts that were not committed
// "KEY OF THE FORKED CHILD@ATTEMPT/ID". `scope` holds the nodes that are drawn together.
function indexNodes(nodes, prefix = "", found = new Map()) {
  for (const node of nodes) {
    const key = prefix + node.id;
    found.set(key, { node, key, prefix, scope: nodes });
    for (const attempt of node.attempts || []) {
      if (attempt.nodes.length) indexNodes(attempt.nodes, `${key}@${attempt.index}/`, found);
    }
  }
  return found;
}

function layout(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const places = new Map();
  let rows = 0, levels = 0;
  const place = (node, level) => {
    levels = Math.max(levels, level + 1);
    const children = node.steps.flatMap((step) => step.children).map((id) => byId.get(id)).filter(Boolean);
    const at = children.map((child) => place(child, level + 1));
    const row = at.length ? (at[0] + at[at.length - 1]) / 2 : rows++;
    places.set(node.id, { node, level, row, children });
    return row;
  };
  nodes.filter((node) => !byId.has(node.parent)).forEach((root) => place(root, 0));
  return { places: [...places.values()], byId: places, rows, levels };
}

// Warm for what went against the node, cool for what went its way; the share says how strongly.
function tint(value) {
  if (value === null || value === undefined) return null;
  const strength = Math.round(12 + 68 * Math.min(1, Math.abs(value)));
  return value === 0 ? "var(--neutral)" : `color-mix(in srgb, var(${value > 0 ? "--cool" : "--warm"}) ${strength}%, var(--surface))`;
}

function shade(node, mode) {
  if (mode === "status") return { fill: `var(--status-${node.status})`, text: node.status.replaceAll("_", " ") };
  if (mode === "outcome") {
    if (node.verified === null) return { fill: null, text: "not verified" };
    return { fill: node.verified ? "var(--good-soft)" : "var(--bad-soft)", text: node.verified ? "✓ success" : "✗ failure" };
  }
  const value = node[mode];
  return { fill: tint(value), text: value === null ? `no ${mode}` : mode === "advantage" ? `A ${signed(value)}` : `r ${number(value)}` };
}

function drawTree(box, entry, chosen, tree) {
  const shape = layout(entry.scope), width = box.clientWidth || 800;
  const column = Math.max(118, Math.min(230, Math.floor(width / Math.max(shape.levels, 1))));
  const inner = column - (column < 150 ? 16 : 34);
  const x = (place) => place.level * column, y = (place) => place.row * ROW + 4;
  const edges = shape.places.flatMap((place) => place.children.map((child) => {
    const end = shape.byId.get(child.id), x0 = x(place) + inner, y0 = y(place) + BOX / 2, x1 = x(end), y1 = y(end) + BOX / 2, bend = (x0 + x1) / 2;
    return svg("path", { class: "edge", d: `M${x0},${y0} C${bend},${y0} ${bend},${y1} ${x1},${y1}` });
  }));
  const nodes = shape.places.map((place) => {
    const { node } = place, look = shade(node, treeState.mode), key = entry.prefix + node.id;
    return h("a", {
      class: ["node", key === chosen && "chosen", !look.fill && "unknown"].filter(Boolean).join(" "), href: nodeLink(tree, key), "data-node": key,
      title: flat(node.goal || "the task"), style: { left: `${x(place)}px`, top: `${y(place)}px`, width: `${inner}px`, height: `${BOX}px`, background: look.fill || "var(--surface)" },
    }, h("span", { class: "first" }, h("b", {}, node.id), h("span", { class: "look" }, look.text), node.attempts.length ? h("span", { class: "fork", title: "forked" }, `×${node.attempts.length}`) : null),
    h("span", { class: "goal" }, flat(node.goal || "the task")));
  });
  const wide = (shape.levels - 1) * column + inner + 4, tall = shape.rows * ROW;
  const canvas = h("div", { class: "canvas", style: { width: `${wide}px`, height: `${tall}px` } }, svg("svg", { width: wide, height: tall, "aria-hidden": "true" }, edges), nodes);
  box.replaceChildren(canvas);
  const at = box.querySelector(".chosen");
  if (at && box.scrollHeight > box.clientHeight) box.scrollTop = at.offsetTop - box.clientHeight / 2;
}

const nodeLink = (tree, key) => `#/tree/${tree.index}/${encodeURIComponent(key)}`;

function legendOf(mode) {
  const item = (fill, text) => h("span", { class: "value" }, h("i", { class: "swatch", style: { background: fill } }), text);
  if (mode === "status") return ["finished", "done", "out_of_steps", "out_of_context", "error"].map((s) => item(`var(--status-${s})`, s.replaceAll("_", " ")));
  if (mode === "outcome") return [item("var(--good-soft)", "success"), item("var(--bad-soft)", "failure"), item("var(--surface)", "not verified")];
  return [item(tint(-1), "−1"), item(tint(-0.3), ""), item(tint(0), "0"), item(tint(0.3), ""), item(tint(1), "+1"), item("var(--surface)", "none")];
}

function treeHead(tree, row, data) {
  const { info } = tree;
  const facts = [
    data.runs.length > 1 && data.runs[row.run].name, row.step !== null && `step ${row.step}`, tree.objective && `${tree.objective} step`,
    row.family.replaceAll("_", " "), row.tier, plural(row.nodes, "node"), `depth ${row.depth}`, row.forks && plural(row.forks, "forked group"),
    info.world_actions !== undefined && plural(info.world_actions, "world action"), `${number(row.tokens)} tokens`,
  ];
  return [h("p", { class: "crumbs" }, h("a", { href: "#/trees" }, "‹ all trees"), step(data, tree.index, -1), step(data, tree.index, 1)),
    h("h1", {}, outcomeMark(tree.reward > 0), " ", visible(tree.task)), h("p", { class: "chips" }, facts.filter(Boolean).map((fact) => h("span", { class: "chip" }, flat(fact))))];
}

function step(data, index, by) {
  const found = matching(data).map((one) => one.index), at = found.indexOf(index), other = found[at + by];
  return at < 0 || other === undefined ? null : h("a", { href: `#/tree/${other}` }, by < 0 ? "previous" : "next");
}

function treePage(tree, key, data) {
  const nodes = indexNodes(tree.nodes), entry = nodes.get(key) || nodes.values().next().value;
  const box = h("div", { class: "drawing", id: "drawing" }), legend = h("p", { class: "legend" });
  const paint = () => { drawTree(box, entry, entry.key, tree); legend.replaceChildren(...legendOf(treeState.mode)); };
  const buttons = MODES.map((mode) => h("button", { type: "button", "data-mode": mode, "aria-pressed": String(mode === treeState.mode), onclick: () => {
    treeState.mode = mode;
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.mode === mode)));
    paint();
  } }, mode));
  let drawn = 0;
  new ResizeObserver(() => { if (box.clientWidth !== drawn) { drawn = box.clientWidth; paint(); } }).observe(box);
  return [treeHead(tree, data.trees[tree.index], data),
    h("section", { class: "card" }, entry.prefix ? attemptCrumb(entry, tree) : null,
      h("div", { class: "toolbar" }, h("span", { class: "note" }, "colour by"), h("span", { class: "switch", role: "group" }, buttons), legend), box),
    nodePanel(entry, nodes, tree)];
}

function attemptCrumb(entry, tree) {
  const [, fork, attempt] = entry.prefix.match(/^(.*)@(\d+)\/$/);
  return h("p", { class: "crumbs" }, h("a", { href: nodeLink(tree, fork) }, `‹ forked group of ${fork}`), h("b", {}, `attempt ${attempt}`), h("span", { class: "note" }, "not committed"));
}
