// Owns the table of measurements and its CSV; then draws the whole page for the first time.
"use strict";

const LEVELS = [
  ["al", "AL", 3], ["user_tps_p50", "user tokens/s", 4], ["output_tps", "output tokens/s", 4], ["ttft_ms_p50", "TTFT ms", 4], ["tpot_ms_p50", "TPOT ms", 4], ["e2e_ms_p50", "E2E ms", 4],
];
const SHORT = { user_tps: "user ×", output_tps: "output ×", ttft: "TTFT ×", e2e: "E2E ×" };
const PAGE_SIZE = 100;
const table = { sort: null, isDescending: true, isAll: false, everySetting: varying.length === 0 };

/** A speed-up; those that decide stand first, where no scrolling hides them. */
function gainColumn(metric) {
  const told = (row) => row[metric] && gainInWords(row[metric]);
  return { head: SHORT[metric], isNumber: true, value: (row) => row[metric]?.ratio, text: (row) => gainText(row[metric]), mark: (row) => gainMark(row[metric]), told };
}

const COLUMNS = [
  ...varying.map((axis) => ({ head: AXES[axis], value: (row) => settings[row.s][axis], text: (row) => named(settings[row.s][axis]) })),
  { head: "load", value: (row) => row.l, text: (row) => row.load.name },
  { head: "draft", value: (row) => row.d, text: (row) => row.draft },
  ...["user_tps", "output_tps"].map(gainColumn),
  ...LEVELS.map(([name, head, digits]) => ({ head, isNumber: true, value: (row) => row[`level_${name}`], text: (row) => number(row[`level_${name}`], digits), told: (row) => spreadOf(row, name, digits) })),
  ...["ttft", "e2e"].map(gainColumn),
  { head: "same outputs", isNumber: true, value: (row) => row.level_lossless, text: (row) => row.level_lossless == null ? "–" : d3.format(".0%")(row.level_lossless) },
  { head: "valid cells", isNumber: true, value: (row) => row.level_n_valid, text: (row) => `${row.level_n_valid} of ${row.level_n_cells}` },
];

/** The least and the most of the repeats behind a mean. */
function spreadOf(row, name, digits) {
  const [least, most] = ["min", "max"].map((end) => row[`level_${name.replace("_p50", "")}_${end}`]);
  return least == null || row.level_n_valid < 2 ? "" : `${row.level_n_valid} valid repeats: ${number(least, digits)} to ${number(most, digits)}`;
}

const gainText = (gain) => gain ? `${times(gain.ratio)}${gain.low == null ? "" : ` [${gain.low.toFixed(2)}, ${gain.high.toFixed(2)}]`}` : "–";
const gainMark = (gain) => !gain ? "" : !gain.valid ? "invalid" : gain.verdict === "not significant" ? "" : gain.verdict;

function tableRows() {
  const rows = table.everySetting ? points.filter((row) => isShown(row.draft)) : shown(points);
  if (table.sort == null) return rows;
  const { value } = COLUMNS[table.sort];
  return d3.sort(rows, (a, b) => (table.isDescending ? d3.descending : d3.ascending)(value(a) ?? NaN, value(b) ?? NaN));
}

function drawTable() {
  const rows = tableRows(), listed = table.isAll ? rows : rows.slice(0, PAGE_SIZE);
  controls("table",
    element("button", { class: "action", type: "button", id: "download", onclick: download }, `Download ${rows.length} rows as CSV`),
    varying.length ? select("rows of", [[false, "the chosen setting"], [true, "every setting"]], table.everySetting, (value) => { table.everySetting = value; drawAll(); }) : null,
    rows.length > listed.length ? element("button", { class: "action", type: "button", onclick: () => { table.isAll = true; drawAll(); } }, `Show all ${rows.length} (now the first ${listed.length})`) : null);
  const head = element("tr", {}, ...COLUMNS.map((column, n) => element("th", {
    scope: "col", class: column.isNumber ? "number" : "", "aria-sort": table.sort !== n ? "none" : table.isDescending ? "descending" : "ascending",
  }, element("button", { type: "button", onclick: () => sortBy(n) }, column.head + (table.sort !== n ? "" : table.isDescending ? " ↓" : " ↑")))));
  const body = listed.map((row) => element("tr", {}, ...COLUMNS.map((column) => {
    const mark = column.mark?.(row) ?? "";
    const told = column.told?.(row);
    return element("td", { class: [column.isNumber ? "number" : "", mark].join(" ").trim(), ...(told ? { title: told } : {}) }, column.text(row));
  })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function sortBy(nth) {
  table.isDescending = table.sort === nth ? !table.isDescending : true;
  table.sort = nth;
  drawAll();
  document.querySelectorAll("#table thead button")[nth].focus();
}

/** The rows that the table shows, with every number in full. */
function csv() {
  const gains = Object.keys(METRICS).flatMap((metric) => GAIN.map((name) => ({ head: `${metric}_${name}`, of: (row) => row[metric]?.[name] })));
  const columns = [
    ...Object.keys(AXES).map((axis) => ({ head: axis, of: (row) => settings[row.s][axis] })),
    { head: "load", of: (row) => row.load.name }, { head: "draft", of: (row) => row.draft },
    ...[...LEVELS.map(([name]) => name), "lossless", "n_cells", "n_ok", "n_valid"].map((name) => ({ head: name, of: (row) => row[`level_${name}`] })),
    ...gains,
  ];
  return d3.csvFormatRows([columns.map(({ head }) => head), ...tableRows().map((row) => columns.map(({ of }) => of(row) ?? ""))]);
}

function download() {
  const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  element("a", { href: address, download: "specsweep.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

drawn("table", drawTable);
fillFilters();
drawAll();
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
