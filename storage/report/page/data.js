// Owns what is shown: the data of the page, the choices of the reader, and the words for them. Draws nothing.
"use strict";

const told = JSON.parse(document.getElementById("data").textContent);
const asObjects = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, n) => [name, row[n]])));
const { settings, drafts, loads, categories } = told;
const GAIN = ["ratio", "low", "high", "verdict", "valid", "prompts", "repeats", "least", "most"];
const METRICS = { user_tps: "a user's speed", output_tps: "output of all users", ttft: "time to first token", e2e: "time to the whole answer" };

const points = asObjects(told.points).map((point) => {
  for (const metric of Object.keys(METRICS)) point[metric] = point[metric] && Object.fromEntries(GAIN.map((name, n) => [name, point[metric][n]]));
  return { ...point, draft: drafts[point.d].name, load: loads[point.l] };
});
const byCategory = asObjects(told.byCategory).map((row) => ({
  ...row, low: row.ci_low, high: row.ci_high, prompts: row.n_prompts, repeats: row.n_repeats, least: row.ratio_min, most: row.ratio_max,
  draft: drafts[row.d].name, load: loads[row.l], category: categories[row.c],
}));

// ------------------------------------------------------------------------------------------------ a draft's looks
const SYMBOLS = ["circle", "square", "triangle", "diamond", "star", "wye", "cross"];
const looks = new Map();
{
  let nth = 0;
  for (const { name, method } of drafts) {
    if (looks.has(name)) continue;
    const place = method === "none" ? 0 : 1 + (nth % 8);
    looks.set(name, { colour: `var(--d${place})`, symbol: SYMBOLS[method === "none" ? 0 : (nth + Math.floor(nth / 8)) % SYMBOLS.length] });
    if (method !== "none") nth += 1;
  }
}
const colourOf = (draft) => looks.get(draft).colour;
const symbolOf = (draft) => looks.get(draft).symbol;
const isBaseline = (draft) => drafts.some(({ name, method }) => name === draft && method === "none");

// ------------------------------------------------------------------------------------------------ the reader's choices
const AXES = {
  run: "run", model: "model", engine: "engine", dtype: "dtype", tp: "TP", batch: "engine batch", workload: "workload", split: "split",
  entropy: "entropy", isl: "input tokens", temperature: "temperature", variant: "settings",
};
const distinct = (values) => [...new Set(values)];
const varying = Object.keys(AXES).filter((axis) => distinct(settings.map((setting) => setting[axis])).length > 1);
const choices = { setting: Object.fromEntries(varying.map((axis) => [axis, busiest()[axis]])), hidden: new Set() };

/** The setting with the most rows; of those with as many, the one where a draft gains most. */
function busiest() {
  const gain = ({ user_tps: told }) => told?.valid && told.verdict === "faster" ? told.ratio : 0;
  const kinds = d3.rollups(points, (rows) => ({ n: rows.length, gain: d3.max(rows, gain) }), (row) => row.s);
  return settings[d3.greatest(kinds, ([, a], [, b]) => d3.ascending(a.n, b.n) || d3.ascending(a.gain, b.gain))?.[0] ?? 0] ?? {};
}

/** Whether a row belongs to the chosen setting; an axis in `but` may have any value. */
function isChosen(row, ...but) {
  return varying.every((axis) => but.includes(axis) || settings[row.s][axis] === choices.setting[axis]);
}

const isShown = (draft) => !choices.hidden.has(draft);
const shown = (rows, ...but) => rows.filter((row) => isChosen(row, ...but) && isShown(drafts[row.d].name));

/** Take the value, and of the rest what keeps a measured setting: the one that agrees most. */
function chooseSetting(axis, value) {
  const wanted = { ...choices.setting, [axis]: value };
  const found = d3.greatest(settings.filter((setting) => setting[axis] === value),
    (setting) => d3.sum(varying, (name) => setting[name] === wanted[name]));
  choices.setting = Object.fromEntries(varying.map((name) => [name, found[name]]));
}

// ------------------------------------------------------------------------------------------------ words and elements
const number = (value, digits = 3) => value == null ? "–" : value >= 1000 ? d3.format(",.0f")(value) : d3.format(`.${digits}~r`)(value);
const times = (value) => value == null ? "–" : `${value.toFixed(2)}×`;
const named = (value) => value === "" || value == null ? "default" : String(value);
const gainInWords = (gain) => [
  `${times(gain.ratio)}${gain.low == null ? "" : ` [${gain.low.toFixed(2)}, ${gain.high.toFixed(2)}]`}`,
  gain.valid ? gain.verdict : "invalid: no claim rests on it",
  `${gain.prompts} prompts, ${gain.repeats === 1 ? "1 repeat" : `${gain.repeats} repeats: ${times(gain.least)} to ${times(gain.most)}`}`,
].join("\n");

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value); else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A labelled <select>; `options` are [value, text]; `take` gets the value that was chosen. */
function select(label, options, chosen, take) {
  const list = element("select", { onchange: (event) => take(options[event.target.selectedIndex][0]) });
  for (const [value, text] of options) list.append(new Option(text, text, false, value === chosen));
  return element("label", { class: "choice" }, label, list);
}

function swatch(draft) {
  const symbol = d3.symbol(SWATCHES[symbolOf(draft)], 70)();
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", 14); svg.setAttribute("height", 14); svg.setAttribute("viewBox", "-7 -7 14 14"); svg.setAttribute("aria-hidden", "true");
  svg.innerHTML = `<path d="${symbol}" fill="${colourOf(draft)}"></path>`;
  return svg;
}
const SWATCHES = {
  circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond, star: d3.symbolStar,
  wye: d3.symbolWye, cross: d3.symbolCross,
};

// ------------------------------------------------------------------------------------------------ drawing again
const drawings = [];

/** Draw a section now, when its width changes and when a choice does; `draw(width)` returns a node, or null for nothing. */
function drawn(id, draw) {
  const section = document.getElementById(id);
  if (!section) return;
  const place = section.querySelector(".plot, .scroll");
  const again = () => place.replaceChildren(draw(place.clientWidth) ?? element("p", { class: "nothing" }, "Nothing was measured with this choice."));
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth !== width) { width = place.clientWidth; again(); }
  }).observe(place);
  drawings.push(again);
}

const drawAll = () => drawings.forEach((again) => again());

/** The choices of one section; `make()` returns its controls, which are made anew with every drawing. */
function controls(id, ...nodes) {
  document.querySelector(`#${id} .controls`)?.replaceChildren(...nodes.filter(Boolean));
}

function fillFilters() {
  const place = document.getElementById("filters");
  if (!place) return;
  const values = (axis) => distinct(settings.map((setting) => setting[axis])).sort((a, b) => d3.ascending(a, b)).map((value) => [value, named(value)]);
  const axes = varying.map((axis) => select(AXES[axis], values(axis), choices.setting[axis], (value) => {
    chooseSetting(axis, value); fillFilters(); drawAll();
  }));
  const chips = distinct(drafts.map(({ name }) => name)).map((name) => element("button", {
    class: "chip", type: "button", "aria-pressed": String(isShown(name)), "data-draft": name,
    onclick: (event) => {
      if (!choices.hidden.delete(name)) choices.hidden.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(isShown(name)));
      drawAll();
    },
  }, swatch(name), name));
  place.replaceChildren(element("div", { class: "chips", role: "group", "aria-label": "Drafts" }, ...chips), ...axes);
}
