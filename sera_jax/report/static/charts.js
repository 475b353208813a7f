// Line and stacked charts as SVG, drawn to the width they are given, with a reading under the pointer.

const COLOURS = 7; // --series-0 to --series-6 of the style sheet
const PAD = { left: 52, right: 10, top: 8, bottom: 26 };
const HEIGHT = 220;

function ticks(low, high, wanted) {
  const span = high - low || 1;
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

// Series on top of each other: each becomes the band between the sums before and after it.
function stack(series) {
  const below = new Map();
  return series.map((one) => {
    const low = one.x.map((x) => below.get(x) || 0);
    const y = one.y.map((v, i) => low[i] + (v || 0));
    one.x.forEach((x, i) => below.set(x, y[i]));
    return { ...one, y, low, high: y, value: one.y };
  });
}

function extent(chart, panels) {
  const all = panels.flatMap((p) => (chart.stacked ? stack(p.series) : p.series));
  const xs = all.flatMap((s) => s.x);
  let ys = all.flatMap((s) => [...s.y, ...s.low, ...s.high]).filter((v) => v !== null);
  if (chart.scale === "log") ys = ys.filter((v) => v > 0);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (chart.scale === "rate") [low, high] = [0, Math.max(high, low < 0 ? high : 0.1) > 0.5 ? 1 : Math.max(high * 1.1, 0.01)];
  else if (chart.scale === "log") [low, high] = ys.length ? [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)] : [0.1, 1];
  else {
    if (chart.stacked || (low > 0 && low < high * 0.6)) low = 0;
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const room = (high - low) * 0.06;
    [low, high] = [low === 0 ? 0 : low - room, high + room];
  }
  return { x: [Math.min(...xs), Math.max(...xs)], y: [low, high] };
}

function axes(chart, range, width) {
  const [x0, x1] = range.x, [y0, y1] = range.y, log = chart.scale === "log";
  const inner = width - PAD.left - PAD.right, tall = HEIGHT - PAD.top - PAD.bottom;
  const at = (v) => (log ? Math.log10(v / y0) / Math.log10(y1 / y0) : (v - y0) / (y1 - y0));
  const x = (v) => PAD.left + (x1 === x0 ? inner / 2 : ((v - x0) / (x1 - x0)) * inner);
  const y = (v) => PAD.top + tall * (1 - at(log ? Math.max(v, y0) : v));
  let marks = ticks(y0, y1, 4);
  if (log) {
    const decades = Math.round(Math.log10(y1 / y0)), every = Math.ceil(decades / 4);
    marks = Array.from({ length: Math.floor(decades / every) + 1 }, (_, i) => y0 * 10 ** (i * every));
  }
  const label = chart.scale === "rate" ? percent : (v) => number(v, 5);
  const fine = Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0] || 1) + 1e-9));
  const tick = chart.scale !== "linear" || y1 >= 1e4 || fine > 4 ? label : (v) => v.toFixed(fine);
  const grid = marks.map((v) => [
    svg("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(v), y2: y(v) }),
    svg("text", { class: "tick", x: PAD.left - 6, y: y(v) + 4, "text-anchor": "end" }, tick(v)),
  ]);
  const steps = x1 === x0 ? [x0] : ticks(x0, x1, Math.max(2, Math.floor(inner / 80))).filter(Number.isInteger);
  const below = steps.map((v) => svg("text", { class: "tick", x: x(v), y: HEIGHT - 8, "text-anchor": "middle" }, v));
  return { x, y, label, marks: [grid, below] };
}

// Runs of points without a gap between them.
function runs(series, log) {
  const found = [[]];
  series.y.forEach((v, i) => {
    if (v === null || (log && v <= 0)) found.push([]);
    else found[found.length - 1].push(i);
  });
  return found.filter((run) => run.length);
}

function curve(series, colour, scale, chart) {
  const path = (indices, values) => indices.map((i) => `${scale.x(series.x[i]).toFixed(1)},${scale.y(values[i]).toFixed(1)}`);
  const drawn = [];
  for (const run of runs(series, chart.scale === "log")) {
    if (series.low.length) {
      const band = [...path(run, series.high), ...path([...run].reverse(), series.low)];
      drawn.push(svg("polygon", { class: chart.stacked ? "layer" : "band", points: band.join(" "), fill: colour }));
    }
    drawn.push(svg("polyline", { class: series.dashed ? "line dashed" : "line", points: path(run, series.y).join(" "), stroke: colour }));
    if (series.x.length <= 40 && !chart.stacked) {
      for (const i of run) drawn.push(svg("circle", { cx: scale.x(series.x[i]), cy: scale.y(series.y[i]), r: 2.4, fill: colour }));
    }
  }
  return drawn;
}

function reading(chart, panel, step, colourOf, label) {
  const lines = panel.series.map((s) => {
    const i = s.x.indexOf(step);
    if (i < 0) return null;
    const interval = s.low.length && !chart.stacked ? ` (${label(s.low[i])} to ${label(s.high[i])})` : "";
    return h("span", { class: "value" }, h("i", { style: { background: colourOf(s) } }), `${s.name} `, h("b", {}, label(s.y[i])), interval);
  });
  return [h("span", { class: "at" }, `step ${step}`), lines];
}

function drawPanel(box, chart, panel, range, colourOf) {
  const width = Math.max(240, box.clientWidth);
  const scale = axes(chart, range, width);
  const series = chart.stacked ? stack(panel.series) : panel.series;
  const cursor = svg("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom, visibility: "hidden" });
  const steps = [...new Set(panel.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const legend = h("p", { class: "legend" });
  const rest = () => {
    cursor.setAttribute("visibility", "hidden");
    legend.replaceChildren(...panel.series.map((s) => h("span", { class: s.dashed ? "value dashed" : "value" }, h("i", { style: { background: colourOf(s) } }), s.name)));
  };
  const point = (event) => {
    const at = event.clientX - picture.getBoundingClientRect().left;
    const step = steps.reduce((best, s) => (Math.abs(scale.x(s) - at) < Math.abs(scale.x(best) - at) ? s : best));
    cursor.setAttribute("x1", scale.x(step));
    cursor.setAttribute("x2", scale.x(step));
    cursor.setAttribute("visibility", "visible");
    legend.replaceChildren(...reading(chart, panel, step, colourOf, scale.label).flat().filter(Boolean));
  };
  const picture = svg(
    "svg",
    { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${chart.title}, ${panel.run}`, onpointermove: point, onpointerleave: rest },
    scale.marks, series.map((s) => curve(s, colourOf(s), scale, chart)), cursor,
  );
  box.replaceChildren(picture, legend);
  rest();
}

// A figure with one panel a run, all on one scale.
function figure(chart, several) {
  const panels = chart.panels.filter((p) => p.series.length);
  const own = (series) => series.colour || series.name;
  const names = [...new Set(panels.flatMap((p) => p.series.map(own)))];
  const colourOf = (series) => `var(--series-${names.indexOf(own(series)) % COLOURS})`;
  const range = extent(chart, panels);
  const boxes = panels.map((panel) => {
    const box = h("div", { class: "plot" });
    let drawn = 0;
    new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== drawn) {
        drawn = box.clientWidth;
        drawPanel(box, chart, panel, range, colourOf);
      }
    }).observe(box);
    return h("div", { class: "panel" }, several && h("h4", {}, panel.run), box);
  });
  return h("figure", { class: "card chart", id: `chart-${chart.name}` }, h("figcaption", {}, h("h3", {}, chart.title), h("p", { class: "note" }, chart.note)), h("div", { class: "panels" }, boxes));
}
