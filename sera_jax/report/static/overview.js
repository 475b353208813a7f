// The run report: facts, held-out success, curves, settings.

function factsTable(runs) {
  const labels = [...new Set(runs.flatMap((run) => Object.keys(run.facts)))];
  if (runs.length === 1) return h("dl", { class: "card tiles" }, labels.map((label) => h("div", {}, h("dt", {}, label), h("dd", {}, runs[0].facts[label]))));
  return h("div", { class: "card scroll" }, h("table", { class: "facts" }, h("thead", {}, h("tr", {}, h("th", {}), runs.map((run) => h("th", {}, run.name)))),
    h("tbody", {}, labels.map((label) => h("tr", {}, h("th", {}, label), runs.map((run) => h("td", {}, run.facts[label] || "–")))))));
}

// Success with its interval, a line a group and a mark a column (run, before or after).
function heldOut(rows, several) {
  const sets = [...new Set(rows.map((row) => row.set))];
  const column = (row) => (several ? `${row.run}, ${row.when}` : row.when);
  const columns = [...new Set(rows.map(column))];
  const colour = (name) => `var(--series-${columns.indexOf(name) % COLOURS})`;
  const scale = () => h("div", { class: "whisker scale" }, ["0", "50", "100 %"].map((text) => h("span", {}, text)));
  const mark = (row) => h("div", { class: "whisker", title: `${column(row)}: ${percent(row.rate)}, 95 % interval ${percent(row.low)} to ${percent(row.high)}, ${row.n} tasks` },
    h("i", { class: "range", style: { left: `${100 * row.low}%`, width: `${100 * (row.high - row.low)}%`, background: colour(column(row)) } }),
    h("i", { class: "dot", style: { left: `${100 * row.rate}%`, background: colour(column(row)) } }));
  const group = (name, members) => h("tr", { class: name === "all" ? "total" : null }, h("th", {}, name.replace(/^\w+: /, "").replaceAll("_", " ")),
    h("td", { class: "whiskers" }, members.map(mark)),
    h("td", { class: "figures" }, members.map((row) => h("div", { style: { color: colour(column(row)) } }, percent(row.rate)))),
    h("td", { class: "figures count" }, members.map((row) => h("div", {}, `n ${row.n}`))));
  const table = (set, kind) => {
    const members = rows.filter((row) => row.set === set && (kind === "family" ? row.group.startsWith("family") : !row.group.startsWith("family")));
    const names = [...new Set(members.map((row) => row.group))];
    return h("table", { class: "heldout" }, h("tbody", {}, names.map((name) => group(name, members.filter((row) => row.group === name)))), h("tfoot", {}, h("tr", {}, h("th", {}), h("td", {}, scale()), h("td", { colspan: 2 }))));
  };
  return h("section", { id: "heldout" }, h("h2", {}, "Held-out success"),
    h("p", { class: "legend" }, columns.map((name) => h("span", { class: "value" }, h("i", { style: { background: colour(name) } }), name)), h("span", { class: "note" }, "95 % Wilson intervals")),
    h("div", { class: "grid wide" }, sets.map((set) => h("div", { class: "card" }, h("h3", {}, `${set} tasks`), table(set, "tier"),
      h("details", {}, h("summary", {}, "by family"), table(set, "family"))))));
}

function settingsTable(rows, runs) {
  if (!rows.length) return null;
  const several = runs.length > 1;
  const line = (row) => h("tr", { class: row.differ ? "differ" : null }, h("th", {}, row.name), row.values.map((value) => h("td", {}, value)));
  const table = (members) => h("div", { class: "scroll" }, h("table", { class: "facts" }, several && h("thead", {}, h("tr", {}, h("th", {}), runs.map((run) => h("th", {}, run.name)))), h("tbody", {}, members.map(line))));
  const differing = rows.filter((row) => row.differ);
  return h("section", {}, h("h2", {}, "Settings"),
    several && h("div", { class: "card" }, h("h3", {}, differing.length ? "What differs" : "No setting differs"), table(differing)),
    h("details", { class: "card" }, h("summary", {}, `all ${rows.length} settings`), table(rows)));
}

function overviewPage(data) {
  const several = data.runs.length > 1;
  const drawn = data.charts.filter((chart) => chart.panels.some((panel) => panel.series.length));
  const missing = data.charts.filter((chart) => !drawn.includes(chart));
  return [
    h("h1", {}, data.title),
    factsTable(data.runs),
    data.heldOut.length ? heldOut(data.heldOut, several) : null,
    h("section", {}, h("h2", {}, "By optimizer step"),
      drawn.length ? h("div", { class: several ? "stackgrid" : "grid" }, drawn.map((chart) => figure(chart, several))) : h("p", { class: "empty" }, "No step has ended yet."),
      missing.length ? h("p", { class: "note" }, `Not recorded: ${missing.map((chart) => chart.title.toLowerCase()).join("; ")}.`) : null),
    settingsTable(data.settings, data.runs),
  ];
}
