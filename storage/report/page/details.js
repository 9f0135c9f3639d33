// Owns the plots that say why: categories, positions, one answer as it arrives, memory, cost.
"use strict";

/** A choice of load, of those that these rows have in the chosen setting; keeps to the one that was chosen before. */
function chooseLoad(id, state, rows) {
  const present = distinct(rows.filter((row) => isChosen(row)).map((row) => row.l)).sort(d3.ascending);
  if (!present.includes(state.load)) state.load = present[0];
  return present.length > 1 && select("load", present.map((l) => [l, loads[l].name]), state.load, (l) => { state.load = l; drawAll(); });
}

// ------------------------------------------------------------------------------------------------ categories
const CATEGORY_VALUES = { ratio: "a user's speed, times the baseline", al: "acceptance length" };
const category = { value: byCategory.some((row) => row.ratio) ? "ratio" : "al", load: null };

function drawCategories(width) {
  controls("category", select("show", Object.entries(CATEGORY_VALUES), category.value, (value) => { category.value = value; drawAll(); }),
    chooseLoad("category", category, byCategory));
  const isRatio = category.value === "ratio";
  const rows = shown(byCategory).filter((row) => row.l === category.load && row[category.value] != null);
  if (!rows.length) return null;
  const order = d3.groupSort(rows, (same) => -d3.max(same, (row) => row[category.value]), (row) => row.category);
  const told = (row) => `${row.category}, ${row.draft}\nAL ${number(row.al)}\n${row.ratio ? gainInWords(row) : ""}`;
  const left = Math.min(width * 0.42, 20 + 7.2 * d3.max(order, (name) => name.length));
  return plot(`${CATEGORY_VALUES[category.value]} by category, ${order.length} categories; highest in ${order[0]}`, {
    width, height: 64 + 30 * order.length, marginLeft: left, marginRight: 16, marginBottom: 40,
    x: isRatio ? { ...ratioAxis(rows.map((row) => ({ ratio: row.ratio })), width - left - 16, 46), label: CATEGORY_VALUES.ratio, labelAnchor: "center", labelArrow: "none", grid: true }
      : { domain: [1, Math.max(2, d3.max(rows, (row) => row.al))], nice: true, ticks: Math.max(3, Math.min(8, width / 70)), label: "tokens a verify step (1 = nothing accepted)", labelAnchor: "center", labelArrow: "none", grid: true },
    y: { type: "point", domain: order, label: null, tickSize: 0, padding: 0.6 },
    marks: [
      Plot.ruleY(d3.groups(rows, (row) => row.category).map(([name, same]) => ({ name, low: d3.min(same, (row) => row[category.value]), high: d3.max(same, (row) => row[category.value]) })),
        { y: "name", x1: "low", x2: "high", stroke: "var(--line)", strokeWidth: 3 }),
      Plot.ruleX([1], { strokeWidth: isRatio ? 1.5 : 1 }),
      Plot.dot(rows, { y: "category", x: category.value, r: 5, symbol: (row) => symbolOf(row.draft), stroke: (row) => colourOf(row.draft), fill: (row) => isRatio ? fillOf(row) : colourOf(row.draft), strokeWidth: 2, opacity: (row) => isRatio ? faintIfInvalid(row) : 1 }),
      ...(isRatio ? crosses(rows, { y: "category", x: "ratio" }) : []),
      Plot.tip(rows, Plot.pointer({ y: "category", x: category.value, title: told })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" }, opacity: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ positions
const positions = asObjects(told.positions).map((row) => ({ ...row, draft: drafts[row.d].name }));
const position = { value: "conditional", load: null };

function drawPositions(width) {
  controls("positions", select("show", [["conditional", "conditional"], ["joint", "joint"]], position.value, (value) => { position.value = value; drawAll(); }),
    chooseLoad("positions", position, positions));
  const rows = shown(positions).filter((row) => row.l === position.load && row[position.value] != null);
  if (!rows.length) return null;
  const names = distinct(rows.map((row) => row.draft)), most = d3.max(rows, (row) => row.position);
  return plot(`${position.value} acceptance rate by position 1 to ${most}, ${names.length} drafts`, {
    width, height: 320, marginLeft: 48, marginRight: 16, marginBottom: 42,
    x: { type: "linear", domain: [0.7, most + 0.3], ticks: d3.range(1, most + 1, Math.ceil(most / 12)), tickFormat: String, label: "position in the draft", labelAnchor: "center", labelArrow: "none" },
    y: { domain: [0, 100], percent: true, grid: true, label: "accepted, %", labelArrow: "none" },
    marks: [
      Plot.ruleY([0]),
      ...names.map((name) => Plot.lineY(rows.filter((row) => row.draft === name), { x: "position", y: position.value, stroke: colourOf(name), strokeWidth: 2 })),
      Plot.dot(rows, { x: "position", y: position.value, r: 4.5, symbol: (row) => symbolOf(row.draft), fill: (row) => colourOf(row.draft) }),
      Plot.tip(rows, Plot.pointer({ x: "position", y: position.value, title: (row) => `${row.draft}, position ${row.position}\nconditional ${row.conditional == null ? "never reached" : d3.format(".1%")(row.conditional)}, joint ${d3.format(".1%")(row.joint ?? 0)}\nreached ${number(row.n)} times` })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ one answer as it arrives
const answers = asObjects(told.timelines).map((row) => ({ ...row, draft: drafts[row.d].name }));
const answer = { category: answers[0]?.category };

function drawTimeline(width) {
  const kinds = distinct(answers.map((row) => row.category));
  controls("timeline", kinds.length > 1 && select("category", kinds.map((name) => [name, name]), answer.category, (value) => { answer.category = value; drawAll(); }));
  const rows = answers.filter((row) => row.category === answer.category && isShown(row.draft));
  if (!rows.length) return null;
  const stairs = rows.flatMap((row) => {
    const counts = d3.cumsum(row.tokens);
    return row.times_ms.map((ms, n) => ({ draft: row.draft, s: ms / 1000, tokens: counts[n], chunk: row.tokens[n], nth: n + 1 }));
  });
  const ends = rows.map((row) => stairs.findLast((stair) => stair.draft === row.draft));
  return plot(`Tokens against time for one answer: ${ends.map((end) => `${end.draft} ${end.tokens} tokens in ${end.s.toFixed(2)} s`).join(", ")}`, {
    width, height: Math.max(280, Math.min(380, width * 0.42)), marginLeft: 48, marginRight: 20, marginBottom: 42,
    x: { domain: [0, d3.max(stairs, (stair) => stair.s) * 1.03], label: "seconds since the request was sent", labelAnchor: "center", labelArrow: "none" },
    y: { domain: [0, d3.max(stairs, (stair) => stair.tokens) * 1.05], grid: true, label: "tokens received", labelArrow: "none" },
    marks: [
      ...rows.map(({ draft }) => Plot.lineY([{ s: 0, tokens: 0 }, ...stairs.filter((stair) => stair.draft === draft)], { x: "s", y: "tokens", stroke: colourOf(draft), strokeWidth: 2, curve: "step-after" })),
      Plot.dot(ends, { x: "s", y: "tokens", r: 5.5, symbol: (end) => symbolOf(end.draft), fill: (end) => colourOf(end.draft), stroke: "var(--card)" }),
      Plot.tip(stairs, Plot.pointer({ x: "s", y: "tokens", title: (stair) => `${stair.draft}\nchunk ${stair.nth} after ${stair.s.toFixed(2)} s: ${stair.chunk} ${stair.chunk === 1 ? "token" : "tokens"}, ${stair.tokens} so far` })),
    ],
    symbol: { type: "identity" }, color: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ memory
const memory = asObjects(told.memory).map((row) => ({ ...row, draft: row.draft ?? "unknown" }));
const PARTS = { weights: "var(--d1)", "draft weights": "var(--d2)", "cache and the rest, at peak": "var(--d0)" };
const GIB = 2 ** 30;

function memoryRows() {
  const chosen = memory.filter((row) => ["run", "model", "engine"].every((axis) => !varying.includes(axis) || row[axis] === choices.setting[axis]));
  const draft = (row) => row.k && !row.draft.includes("k=") ? `${row.draft} k=${row.k}` : row.draft;
  const label = (row) => row.variant ? `${draft(row)}, ${row.variant}` : draft(row);
  const place = (row) => drafts.findIndex(({ name }) => name === row.draft || name === draft(row));
  return [...d3.group(d3.sort(chosen, place), label)].map(([name, same]) => ({ name, ...d3.greatest(same, (row) => row.peak_memory_bytes ?? row.weights_bytes ?? 0) }));
}

function drawMemory(width) {
  const rows = memoryRows();
  if (!rows.length) return null;
  const left = Math.min(width * 0.4, 24 + 7.2 * d3.max(rows, (row) => row.name.length));
  return element("div", {}, memoryBars(rows, width, left) ?? "", cacheBars(rows, width, left) ?? "");
}

function memoryBars(rows, width, left) {
  const parts = rows.flatMap((row) => {
    const weights = row.weights_bytes ?? 0, draft = row.draft_weights_bytes ?? 0, rest = Math.max(0, (row.peak_memory_bytes ?? 0) - weights - draft);
    return [["weights", weights], ["draft weights", draft], ["cache and the rest, at peak", rest]].map(([part, bytes]) => ({ name: row.name, part, gib: bytes / GIB }));
  }).filter((part) => part.gib > 0);
  if (!parts.length) return null;
  const legend = element("p", { class: "caption" });
  for (const [part, colour] of Object.entries(PARTS)) {
    if (parts.some((one) => one.part === part)) legend.append(element("span", { style: `display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;background:${colour}` }), `${part}   `);
  }
  return element("div", {}, legend, plot(`Memory in GiB by draft: ${rows.map((row) => row.name).join(", ")}`, {
    width, height: 56 + 34 * rows.length, marginLeft: left, marginRight: 50, marginBottom: 40, marginTop: 10,
    x: { label: "GiB", labelAnchor: "center", labelArrow: "none", grid: true, nice: true, ticks: 5 }, y: { domain: rows.map((row) => row.name), label: null, tickSize: 0, padding: 0.3 },
    marks: [
      Plot.barX(parts, { y: "name", x: "gib", fill: (part) => PARTS[part.part], insetRight: 1, order: Object.keys(PARTS), z: "part" }),
      Plot.text(d3.rollups(parts, (same) => d3.sum(same, (part) => part.gib), (part) => part.name), { y: "0", x: "1", text: ([, gib]) => number(gib), textAnchor: "start", dx: 6, fontWeight: 600, fill: "currentColor" }),
      Plot.tip(parts, Plot.pointerY(Plot.stackX({ y: "name", x: "gib", z: "part", order: Object.keys(PARTS), title: (part) => `${part.name}: ${part.part} ${number(part.gib)} GiB` }))),
    ],
    color: { type: "identity" },
  }));
}

function cacheBars(rows, width, left) {
  const known = rows.filter((row) => row.kv_capacity_tokens);
  if (!known.length || !known.some((row) => row.kv_lost_tokens)) return null;
  return plot("KV cache in tokens by draft", {
    width, height: 60 + 34 * known.length, marginLeft: left, marginRight: 90, marginBottom: 40, marginTop: 14,
    x: { label: "tokens that the KV cache holds", labelAnchor: "center", labelArrow: "none", grid: true, nice: true, ticks: 3, tickFormat: "~s" }, y: { domain: known.map((row) => row.name), label: null, tickSize: 0, padding: 0.3 },
    marks: [
      Plot.barX(known, { y: "name", x: "kv_capacity_tokens", fill: "var(--d1)" }),
      Plot.text(known, { y: "name", x: "kv_capacity_tokens", text: (row) => d3.format(".3~s")(row.kv_capacity_tokens) + (row.kv_lost_share ? ` (−${d3.format(".1%")(row.kv_lost_share)})` : ""), textAnchor: "start", dx: 6, fontWeight: 600, fill: "currentColor" }),
    ],
    color: { type: "identity" },
  });
}

// ------------------------------------------------------------------------------------------------ cost
const costs = asObjects(told.costs).map((row) => ({ ...row, draft: drafts[row.d].name }));
const COSTS = { money_per_mtok: "money", gpu_s_per_mtok: "GPU-seconds", joules_per_mtok: "joules", cpu_s_per_mtok: "CPU-seconds" };
const cost = { of: Object.keys(COSTS).find((name) => costs.some((row) => row[name] != null)), load: null };

function drawCosts(width) {
  const kinds = Object.keys(COSTS).filter((name) => costs.some((row) => row[name] != null));
  controls("costs", kinds.length > 1 && select("in", kinds.map((name) => [name, COSTS[name]]), cost.of, (value) => { cost.of = value; drawAll(); }), chooseLoad("costs", cost, costs));
  const rows = shown(costs).filter((row) => row.l === cost.load && row[cost.of] != null);
  if (!rows.length) return null;
  rows.sort((a, b) => a.d - b.d);
  const names = rows.map((row) => row.draft);
  return plot(`${COSTS[cost.of]} per million output tokens: ${rows.map((row) => `${row.draft} ${number(row[cost.of])}`).join(", ")}`, {
    width, height: 56 + 34 * rows.length, marginLeft: Math.min(width * 0.4, 24 + 7.2 * d3.max(names, (name) => name.length)), marginRight: 64, marginBottom: 40, marginTop: 10,
    x: { label: `${COSTS[cost.of]} per million output tokens`, labelAnchor: "center", labelArrow: "none", grid: true, nice: true, ticks: 5, tickFormat: "~s" }, y: { domain: names, label: null, tickSize: 0, padding: 0.3 },
    marks: [
      Plot.barX(rows, { y: "draft", x: cost.of, fill: (row) => colourOf(row.draft) }),
      Plot.text(rows, { y: "draft", x: cost.of, text: (row) => number(row[cost.of]), textAnchor: "start", dx: 6, fontWeight: 600, fill: "currentColor" }),
    ],
    color: { type: "identity" },
  });
}

drawn("category", drawCategories);
drawn("positions", drawPositions);
drawn("timeline", drawTimeline);
drawn("memory", drawMemory);
drawn("costs", drawCosts);
