// Owns the plots that answer whether it pays: speed-up by load, prompt length and load, speed against throughput.
"use strict";

const STYLE = { background: "none", color: "currentColor", fontFamily: "inherit", fontSize: "12.5px" };
const RATIO_TICKS = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16];

/** A plot that a screen reader announces in one sentence; the table below holds its numbers. */
function plot(label, options) {
  const svg = Plot.plot({ style: STYLE, marginTop: 24, ...options });
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  for (const mark of svg.querySelectorAll("g[aria-label]")) {  // names of marks, which tell a listener nothing
    mark.dataset.mark = mark.getAttribute("aria-label");
    mark.removeAttribute("aria-label");
  }
  return svg;
}

/** A logarithmic axis of ratios that holds 1 and every point; an interval far beyond the points is cut. `length` in pixels, of
 *  which each tick needs `room`. */
function ratioAxis(rows, length, room) {
  const ratios = rows.map((row) => row.ratio), [least, most] = d3.extent(ratios);
  const low = Math.max(d3.min(rows, (row) => row.low ?? row.ratio), least / 2), high = Math.min(d3.max(rows, (row) => row.high ?? row.ratio), most * 2);
  const domain = [Math.min(0.92, low * 0.95), Math.max(1.09, high * 1.05)];
  return { type: "log", domain, ticks: ticksApart(domain, length, room), tickFormat: (tick) => `${tick}×`, clamp: true };
}

/** Those that have room beside each other, nearest to 1 first. */
function ticksApart(domain, length, room) {
  const at = d3.scaleLog(domain, [0, length]), kept = [];
  for (const tick of d3.sort(RATIO_TICKS, (tick) => Math.abs(Math.log(tick)))) {
    if (tick >= domain[0] && tick <= domain[1] && kept.every((other) => Math.abs(at(tick) - at(other)) >= room)) kept.push(tick);
  }
  return kept.sort(d3.ascending);
}

const isSure = (row) => row.valid && row.verdict !== "not significant";
const fillOf = (row) => isSure(row) ? colourOf(row.draft) : "var(--card)";
const PALE = 0.4;  // true, but of less use; hollow is kept for what is not significant
const faintIfInvalid = (row) => row.valid ? 1 : 0.45;

// ------------------------------------------------------------------------------------------------ speed-up by load
const speedup = { metric: "user_tps", category: "all" };

function speedupRows() {
  if (speedup.category !== "all") return shown(byCategory).filter((row) => row.category === speedup.category && row.ratio);
  return shown(points).filter((row) => row[speedup.metric]?.ratio).map((row) => ({ ...row, ...row[speedup.metric] }));
}

function drawSpeedup(width) {
  const again = (name) => (value) => { speedup[name] = value; drawAll(); };
  controls("speedup",
    speedup.category === "all" && select("of", Object.entries(METRICS), speedup.metric, again("metric")),
    categories.length > 1 && select("category", [["all", "all"], ...categories.map((name) => [name, name])], speedup.category, again("category")));
  const rows = speedupRows();
  if (!rows.length) return null;
  const metric = speedup.category === "all" ? speedup.metric : "user_tps";
  return distinct(rows.map((row) => row.load.x)).length > 1 ? linesByLoad(rows, metric, width) : forest(rows, metric, width);
}

/** One load only: a row a draft. */
function forest(rows, metric, width) {
  const names = distinct(rows.map((row) => row.draft));
  const left = Math.min(width * 0.4, 24 + 7.2 * d3.max(names, (name) => name.length));
  return plot(`Speed-up of ${METRICS[metric]} by draft: ${rows.map((row) => `${row.draft} ${times(row.ratio)}`).join(", ")}`, {
    width, height: 60 + 38 * names.length, marginLeft: left, marginRight: 62, marginBottom: 40,
    x: { ...ratioAxis(rows, width - left - 62, 46), label: `${METRICS[metric]}, times the baseline at ${rows[0].load.name}`, labelAnchor: "center", labelArrow: "none", grid: true },
    y: { domain: names, label: null, tickSize: 0 },
    marks: [
      Plot.ruleX([1], { strokeWidth: 1.5 }),
      Plot.ruleY(rows, { y: "draft", x1: "low", x2: "high", stroke: (row) => colourOf(row.draft), strokeWidth: 2.5, strokeOpacity: faintIfInvalid, clip: true }),
      Plot.dot(rows, { y: "draft", x: "ratio", r: 6, symbol: (row) => symbolOf(row.draft), stroke: (row) => colourOf(row.draft), fill: fillOf, strokeWidth: 2, opacity: faintIfInvalid }),
      ...crosses(rows, { y: "draft", x: "ratio" }),
      Plot.text(rows, { y: "draft", frameAnchor: "right", dx: 12, textAnchor: "start", text: (row) => times(row.ratio), fontWeight: 600, fill: "currentColor" }),
      Plot.tip(rows, Plot.pointer({ y: "draft", x: "ratio", title: (row) => `${row.draft}, ${row.load.name}\n${gainInWords(row)}` })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" }, opacity: { type: "identity" },
  });
}

function linesByLoad(rows, metric, width) {
  const names = distinct(rows.map((row) => row.draft)), values = distinct(rows.map((row) => row.load.x)).sort(d3.ascending);
  const apart = (name) => Math.min(5, 40 / names.length) * (names.indexOf(name) - (names.length - 1) / 2);
  const kind = rows[0].load.kind === "closed" ? "concurrent requests" : "requests per second";
  const isWide = values[0] > 0 && values.at(-1) / values[0] >= 4;
  const marks = names.flatMap((name) => {
    const line = rows.filter((row) => row.draft === name).sort((a, b) => a.load.x - b.load.x), dx = apart(name), x = (row) => row.load.x;
    return [
      Plot.ruleX(line, { x, y1: "low", y2: "high", stroke: colourOf(name), strokeWidth: 1.5, strokeOpacity: (row) => 0.6 * faintIfInvalid(row), dx, clip: true }),
      Plot.lineY(line, { x, y: "ratio", stroke: colourOf(name), strokeWidth: 2, dx }),
      Plot.dot(line, { x, y: "ratio", r: 4.5, symbol: symbolOf(name), stroke: colourOf(name), fill: fillOf, strokeWidth: 2, dx, opacity: faintIfInvalid }),
      ...crosses(line, { x, y: "ratio", dx }),
    ];
  });
  const height = Math.max(300, Math.min(440, width * 0.5));
  return plot(`Speed-up of ${METRICS[metric]} against ${kind}, ${names.length} drafts, from ${times(d3.min(rows, (row) => row.ratio))} to ${times(d3.max(rows, (row) => row.ratio))}`, {
    width, height, marginLeft: 52, marginRight: 24, marginBottom: 44,
    x: { type: isWide ? "log" : "linear", domain: padded(values, isWide), axis: null },
    y: { ...ratioAxis(rows, height - 68, 22), label: `${METRICS[metric]}, times the baseline`, labelArrow: "none", grid: true },
    marks: [
      Plot.axisX(values, { text: (value) => number(value), label: kind, labelAnchor: "center", labelArrow: "none" }),  // a log axis would leave out some
      Plot.ruleY([1], { strokeWidth: 1.5 }),
      ...marks,
      Plot.tip(rows, Plot.pointer({ x: (row) => row.load.x, y: "ratio", title: (row) => `${row.draft}, ${row.load.name}\n${gainInWords(row)}` })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" }, opacity: { type: "identity" },
  });
}

const crosses = (rows, places) => [
  Plot.dot(rows.filter((row) => !row.valid), { ...places, symbol: "times", r: 4, stroke: "currentColor", strokeWidth: 1.5 }),
];

function padded(values, isLog) {
  if (values.length === 1) return [values[0] * 0.9, values[0] * 1.1];
  const [low, high] = [values[0], values.at(-1)], share = 0.06;
  return isLog ? [low * (low / high) ** share, high * (high / low) ** share] : [low - share * (high - low), high + share * (high - low)];
}

// ------------------------------------------------------------------------------------------------ prompt length and load
const heat = { metric: "user_tps", draft: "best" };
const STEPS = [0.5, 0.7, 0.85, 0.97, 1.03, 1.2, 1.5, 2];  // between the colours --h0 to --h8

function drawHeat(width) {
  const names = distinct(points.filter((row) => row.user_tps).map((row) => row.draft)), again = (name) => (value) => { heat[name] = value; drawAll(); };
  controls("heat", select("of", Object.entries(METRICS), heat.metric, again("metric")),
    select("draft", [["best", "best"], ...names.map((name) => [name, name])], heat.draft, again("draft")));
  const rows = (heat.draft === "best" ? shown(points, "isl") : points.filter((row) => isChosen(row, "isl") && row.draft === heat.draft))
    .filter((row) => row[heat.metric]?.ratio && row.load.kind === "closed")
    .map((row) => ({ ...row, ...row[heat.metric], isl: settings[row.s].isl }));
  const best = d3.rollups(rows, (same) => d3.greatest(same, (row) => (row.valid ? 1000 : 0) + row.ratio), (row) => `${row.isl}/${row.load.x}`).map(([, row]) => row);
  if (!best.length) return null;
  const xs = distinct(best.map((row) => row.load.x)).sort(d3.ascending), ys = distinct(best.map((row) => row.isl)).sort(d3.descending);
  const step = (row) => d3.bisect(STEPS, row.ratio), isNarrow = width / xs.length < 58;
  const told = (row) => { const text = isNarrow ? row.ratio.toFixed(1) : times(row.ratio); return isSure(row) ? text : `(${text})`; };
  return plot(`Speed-up of ${METRICS[heat.metric]} by input tokens and concurrency, from ${times(d3.min(best, (row) => row.ratio))} to ${times(d3.max(best, (row) => row.ratio))}`, {
    width, height: 70 + ys.length * 46, marginLeft: 64, marginBottom: 44, padding: 0.04,
    x: { type: "band", domain: xs, label: "concurrent requests", labelArrow: "none", tickSize: 0, tickFormat: (value) => number(value) },
    y: { type: "band", domain: ys, label: "input tokens", labelArrow: "none", tickSize: 0, tickFormat: (value) => number(value) },
    marks: [
      Plot.cell(best, { x: (row) => row.load.x, y: "isl", fill: (row) => `var(--h${step(row)})`, rx: 3, fillOpacity: (row) => row.valid ? 1 : 0.3 }),
      Plot.text(best, { x: (row) => row.load.x, y: "isl", text: told, fill: (row) => row.valid ? `var(--t${step(row)})` : "currentColor", fontWeight: 600 }),
      Plot.tip(best, Plot.pointer({ x: (row) => row.load.x, y: "isl", title: (row) => `${row.draft}, ${row.isl} input tokens, ${row.load.name}\n${gainInWords(row)}` })),
    ],
    color: { type: "identity" }, opacity: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ speed against throughput
const frontier = asObjects(told.frontier).map((row) => ({ ...row, draft: drafts[row.d].name, load: loads[row.l] }));

function drawFrontier(width) {
  const rows = shown(frontier);
  if (!rows.length) return null;
  const edge = frontier.filter((row) => isChosen(row) && row.on_frontier).sort((a, b) => a.user_tps - b.user_tps);
  const names = distinct(rows.map((row) => row.draft)), devices = distinct(rows.map((row) => row.device));
  const device = devices.length > 1 ? "a GPU or node" : devices[0] === "node" ? "the node" : `one ${devices[0]}`;
  const isSpread = (name) => d3.min(rows, (row) => row[name]) < 0.5 * d3.max(rows, (row) => row[name]);
  const hasLoads = distinct(rows.map((row) => row.l)).length > 1;
  return plot(`Output tokens per second of ${device} against those of one user: ${rows.length} points, ${edge.length} on the frontier`, {
    width, height: Math.max(320, Math.min(460, width * 0.5)), marginLeft: 56, marginRight: 30, marginBottom: 44, grid: true, inset: 14,
    x: { label: "tokens per second for one user", labelAnchor: "center", labelArrow: "none", zero: isSpread("user_tps"), nice: true },
    y: { label: `tokens per second of ${device}`, labelArrow: "none", zero: isSpread("tps_per_device"), nice: true },
    marks: [
      Plot.line(edge, { x: "user_tps", y: "tps_per_device", z: "device", stroke: "currentColor", strokeOpacity: 0.3, strokeWidth: 7, strokeLinejoin: "round", strokeLinecap: "round" }),
      ...names.map((name) => Plot.line(rows.filter((row) => row.draft === name).sort((a, b) => a.load.x - b.load.x), { x: "user_tps", y: "tps_per_device", z: "device", stroke: colourOf(name), strokeOpacity: 0.7 })),
      Plot.dot(rows, { x: "user_tps", y: "tps_per_device", r: 5.5, symbol: (row) => symbolOf(row.draft), fill: (row) => colourOf(row.draft), stroke: (row) => colourOf(row.draft), strokeWidth: 2, opacity: (row) => row.on_frontier ? 1 : PALE }),
      hasLoads && rows.length <= 60 ? Plot.text(rows, { x: "user_tps", y: "tps_per_device", text: (row) => number(row.load.x), dy: -12, fontSize: 11, fill: "var(--soft)" }) : null,
      Plot.tip(rows, Plot.pointer({ x: "user_tps", y: "tps_per_device", title: (row) => `${row.draft}, ${row.load.name}${devices.length > 1 ? `, ${row.device}` : ""}\n${number(row.user_tps)} tokens/s for a user (${number(row.user_tps_min)} to ${number(row.user_tps_max)})\n${number(row.tps_per_device)} tokens/s of ${device}\n${row.n_repeats} repeats${row.on_frontier ? ", on the frontier" : ""}` })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" }, opacity: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ within latency limits
const limitsOf = (row) => [row.slo_ttft_s && `first token within ${row.slo_ttft_s} s`, row.slo_tpot_s && `${number(1000 * row.slo_tpot_s)} ms a token`].filter(Boolean).join(", ");
const goodput = asObjects(told.goodput).map((row) => ({ ...row, draft: drafts[row.d].name, load: loads[row.l], limits: limitsOf(row) }));
const limit = { value: goodput[0]?.limits };

function drawGoodput(width) {
  const kinds = distinct(shown(goodput).map((row) => row.limits));
  if (!kinds.includes(limit.value)) limit.value = kinds[0];
  controls("goodput", kinds.length > 1 && select("limits", kinds.map((name) => [name, name]), limit.value, (value) => { limit.value = value; drawAll(); }));
  const rows = shown(goodput).filter((row) => row.limits === limit.value);
  if (!rows.length) return null;
  const values = distinct(rows.map((row) => row.load.x)).sort(d3.ascending), isWide = values[0] > 0 && values.at(-1) / values[0] >= 4;
  const kind = rows[0].load.kind === "closed" ? "concurrent requests" : "requests sent per second", x = (row) => row.load.x;
  const told = (row) => `${row.draft}, ${row.load.name}\n${number(row.goodput_rps)} requests/s within limits (${number(row.goodput_rps_min)} to ${number(row.goodput_rps_max)})\n${d3.format(".0%")(row.slo_attainment)} meet them: ${row.holds ? "it holds" : "too few"}\n${row.n_repeats} ${row.n_repeats === 1 ? "repeat" : "repeats"}`;
  return plot(`Requests per second within ${limit.value} against ${kind}, at best ${number(d3.max(rows, (row) => row.goodput_rps))}`, {
    width, height: 320, marginLeft: 52, marginRight: 24, marginBottom: 44,
    x: { type: isWide ? "log" : "linear", domain: padded(values, isWide), axis: null },
    y: { zero: true, nice: true, grid: true, label: `requests per second with ${limit.value}`, labelArrow: "none" },
    marks: [
      Plot.axisX(values, { text: (value) => number(value), label: kind, labelAnchor: "center", labelArrow: "none" }),
      Plot.ruleY([0]),
      ...distinct(rows.map((row) => row.draft)).map((name) => Plot.lineY(rows.filter((row) => row.draft === name).sort((a, b) => a.load.x - b.load.x), { x, y: "goodput_rps", stroke: colourOf(name), strokeWidth: 2 })),
      Plot.ruleX(rows, { x, y1: "goodput_rps_min", y2: "goodput_rps_max", stroke: (row) => colourOf(row.draft), strokeOpacity: 0.6 }),
      Plot.dot(rows, { x, y: "goodput_rps", r: 5, symbol: (row) => symbolOf(row.draft), stroke: (row) => colourOf(row.draft), fill: (row) => colourOf(row.draft), strokeWidth: 2, opacity: (row) => row.holds ? 1 : PALE }),
      Plot.tip(rows, Plot.pointer({ x, y: "goodput_rps", title: told })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" }, opacity: { type: "identity" },
  });
}

drawn("speedup", drawSpeedup);
drawn("heat", drawHeat);
drawn("frontier", drawFrontier);
drawn("goodput", drawGoodput);
