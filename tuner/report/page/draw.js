// The page's data, how figures are written, tables and charts. Everything that comes from the database is set as text, never as HTML.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const drawn = JSON.parse(document.getElementById("charts").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const state = { place: 0, problem: null, parameter: null, family: null, run: null };
const views = {};
const byId = (id) => document.getElementById(id);
const trials = columnsToRows(data.trials);

function columnsToRows(columns) {
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  return Array.from({ length: count }, (_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}

// Figures: four digits, whatever their size.
const digits = (value) => (value == null ? "" : value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));
const time = (us) => (us == null ? "" : us >= 1e5 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`);
const fixed = (value, places) => (value == null ? "" : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }));
const ratio = (value) => (value == null ? "" : `${fixed(value, value < 0.1 ? 3 : 2)}×`);
const moment = (text) => (text || "").replace("T", " ").replace("Z", "");
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const here = (row) => row.place === state.place;
const chosen = (row) => here(row) && row.problem === state.problem;

function element(tag, text, parts = {}) {
  const made = document.createElement(tag);
  if (text != null) made.textContent = text;
  return Object.assign(made, parts);
}

function pairs(list, entries) {
  list.replaceChildren(...entries.filter(([, value]) => value != null && value !== "").map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", String(value)));
    return pair;
  }));
}

// Columns are [title, content of a row, class]; content is a text or an element.
function table(target, columns, rows) {
  const head = element("tr");
  head.append(...columns.map(([title, , kind]) => element("th", title, { className: kind || "", scope: "col" })));
  const body = element("tbody");
  body.append(...rows.map((row) => {
    const line = element("tr");
    line.append(...columns.map(([, content, kind]) => {
      const cell = element("td", null, { className: kind || "" });
      cell.append(content(row) ?? "");
      return cell;
    }));
    if (row.problem != null) line.dataset.problem = row.problem;
    return line;
  }));
  const top = element("thead");
  top.append(head);
  target.replaceChildren(top, body);
}

function options(select, entries, value) {
  select.replaceChildren(...entries.map(([key, text]) => element("option", text, { value: key })));
  if (value != null) select.value = value;
}

// Charts ------------------------------------------------------------------------------------------------------------

// What makes a chart as high as its rows. Vega-Lite can count them itself, and warns that it then cannot fit a height.
const rowsHigh = (count) => (spec) => { spec.height = spec.height.step * count; };

async function draw(name, datasets, params = {}, change = null) {
  const target = byId(`${name}-chart`);
  const old = views[name];
  if (old && !change) {
    for (const [key, rows] of Object.entries(datasets)) old.view.data(key, rows);
    for (const [key, value] of Object.entries(params)) old.view.signal(key, value);
    await old.view.runAsync();
    return;
  }
  if (old) old.finalize();
  const spec = structuredClone(drawn.charts[name]);
  spec.datasets = datasets;
  for (const param of spec.params || []) param.value = params[param.name] ?? param.value;
  if (change) change(spec, target);
  const config = structuredClone(dark.matches ? drawn.dark : drawn.light);
  config.axisY = { labelLimit: Math.max(110, Math.min(330, target.clientWidth * 0.46)) };
  views[name] = await vegaEmbed(target, spec, {
    config, mode: "vega-lite", logLevel: 1, // errors alone: it would warn of every layer that has no row
    renderer: name === "clock" || name === "power" ? "canvas" : "svg",
    actions: { export: true, source: false, compiled: false, editor: false }, tooltip: { theme: "custom" },
    downloadFileName: `triton-tuner-${name}`,
  });
  views[name].view.addEventListener("click", (_, item) => {
    const row = item && item.datum;
    if (row && row.problem != null && row.problem !== state.problem) choose(row.problem);
  });
}
