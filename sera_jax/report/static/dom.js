// Small helpers. Text always enters the page as text nodes; nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// Policy text as it is, with what would be invisible or reorder its surroundings spelled out.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;

function visible(text) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match[0] === "\n" || match[0] === "\t") continue;
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(text.slice(last, match.index), h("span", { class: "control" }, `U+${code}`));
    last = match.index + match[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

// One line for a list or a box: control characters and line ends as blanks.
const flat = (text) => text.replace(HIDDEN, " ").replace(/\s+/g, " ").trim();

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

const trim = (value) => String(Number(value.toPrecision(3)));
const percent = (value) => (value === null || value === undefined ? "–" : `${Number((100 * value).toFixed(1))} %`);
const signed = (value) => (value > 0 ? "+" : "") + number(value, 2);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
