// What each part of the page shows, and what choosing a problem, a device or a parameter changes.

// What a page shows of the chosen place ----------------------------------------------------------------------------

const winnerOf = (problem) => data.winners.find((row) => here(row) && row.problem === problem);
const searchOf = (problem) => data.searches.find((row) => here(row) && row.problem === problem);

const ops = new Set(data.problems.map((problem) => problem.name.split(" ")[0]));
const short = (name) => (ops.size > 1 ? name : name.slice(name.indexOf(" ") + 1)); // labels are cut on narrow screens

function winnerRows() {
  return data.winners.filter(here).map((row) => ({
    ...row, name: data.problems[row.problem].name, short: short(data.problems[row.problem].name), label: data.configs[row.config].label, us_text: time(row.us),
    vendor_text: ratio(row.vs_vendor), default_text: ratio(row.vs_default),
  })).sort((a, b) => (b.vs_vendor ?? -1) - (a.vs_vendor ?? -1) || (b.vs_default ?? -1) - (a.vs_default ?? -1));
}

function head() {
  const place = data.places[state.place];
  byId("device").textContent = place.device;
  document.title = `${place.device}: triton-tuner report`;
  pairs(byId("facts"), Object.entries(place.facts));
  byId("measured").textContent = `${many(place.trials, "trial")} of ${many(place.problems, "problem")}`
    + (place.first ? `, measured from ${moment(place.first)} to ${moment(place.last)} UTC.` : ".");
  byId("interpreter").hidden = !place.interpreter;
  byId("library").textContent = place.interpreter ? "torch's own product on the CPU" : "torch's own library (cuBLAS or hipBLASLt)";
  if (data.shown) {
    byId("thinned").textContent = `Of ${data.shown[1].toLocaleString("en")} trials this page holds ${data.shown[0].toLocaleString("en")}: `
      + "winners, ties and the best so far of every search are all here, and the other trials are an even sample. Counts are of all trials.";
    byId("thinned").hidden = false;
  }
  document.querySelector("footer").textContent = `Written by triton-tuner ${data.tuner}. This file holds all it shows, and asks for nothing from any network.`;
}

function tiles(rows) {
  const place = data.places[state.place];
  const against = rows.filter((row) => row.vs_vendor != null);
  const faster = against.filter((row) => row.vs_vendor > 1.005).length;
  const entries = [
    [`${rows.length} of ${place.problems || rows.length}`, "problems have a winner"],
    [ratio(place.vs_vendor), "as fast as torch (geometric mean)"],
    [against.length ? `${faster} of ${against.length}` : "", "winners beat torch by over 0.5%"],
    [ratio(place.vs_default), "as fast as the default config (geometric mean)"],
    [place.trials ? `${fixed((100 * place.failed) / place.trials, 1)}%` : "", "of trials failed"],
  ];
  byId("tiles").replaceChildren(...entries.filter(([figure]) => figure).map(([figure, text]) => {
    const tile = element("li");
    tile.append(element("b", figure), element("span", text));
    return tile;
  }));
}

function overview() {
  const rows = winnerRows();
  tiles(rows);
  table(byId("winners"), [
    ["problem", (row) => element("button", row.name, { type: "button", onclick: () => choose(row.problem) })],
    ["winning config", (row) => row.label],
    ["µs", (row) => fixed(row.us, 2), "number"],
    ["TFLOP/s", (row) => digits(row.tflops || null), "number"],
    ["vs torch", (row) => ratio(row.vs_vendor), "number"],
    ["vs default", (row) => ratio(row.vs_default), "number"],
    ["ties", (row) => String(row.tied.length), "number"],
  ], rows);
  const rival = rows.some((row) => row.vs_vendor != null || row.vs_default != null);
  byId("overview-chart").hidden = !rival;
  return rival ? draw("overview", { winners: rows }, { chosen: state.problem ?? -1 }, rowsHigh(rows.length)) : null;
}

function coverage() {
  const rows = [];
  const known = new Map(data.winners.filter(here).map((row) => [row.problem, row]));
  const tried = new Set([...known.keys(), ...data.searches.filter(here).map((row) => row.problem)]);
  for (const problem of [...tried].sort((a, b) => a - b)) {
    const { name, m, n, k } = data.problems[problem];
    const won = known.get(problem);
    if (m != null) rows.push({ problem, name, m, n, k, tuned: Boolean(won), vs_vendor: won?.vs_vendor, vendor_text: ratio(won?.vs_vendor), state: won ? "tuned" : "tried, no winner" });
  }
  for (const family of data.families.filter(here)) {
    let band = null;
    for (const { first, last } of family.ranges) { // between the ranges of two ladders there may be a gap
      if (band?.last === first - 1) band.last = last;
      else rows.push((band = { n: family.n, k: family.k, first, last }));
    }
  }
  byId("coverage").hidden = !rows.length;
  if (!rows.length) return null;
  return draw("coverage", { coverage: rows }, {}, (spec, target) => {
    const columns = Math.max(1, Math.min(new Set(rows.map((row) => row.k)).size, Math.floor(target.clientWidth / 255)));
    spec.columns = columns;
    spec.spec.width = Math.min(300, Math.floor(target.clientWidth / columns) - 62);
  });
}

function failures() {
  const order = ["INVALID", "COMPILE_ERROR", "OUT_OF_RESOURCES", "RUNTIME_ERROR", "WRONG_RESULT", "TIMEOUT", "CRASHED"];
  const tried = {};
  for (const row of data.failures.filter(here)) tried[row.kernel] = (tried[row.kernel] || 0) + row.count;
  const failed = data.failures.filter((row) => here(row) && row.state !== "COMPLETE")
    .map((row) => ({ ...row, order: order.indexOf(row.state), share: row.count / tried[row.kernel] }))
    .sort((a, b) => b.count - a.count || (a.kernel < b.kernel ? -1 : 1));
  byId("failures-none").hidden = failed.length > 0;
  byId("failed").hidden = byId("failures-chart").hidden = !failed.length;
  table(byId("failed"), [
    ["state", (row) => row.state], ["kernel", (row) => row.kernel], ["trials", (row) => row.count.toLocaleString("en"), "number"],
    ["of the kernel's", (row) => `${fixed(100 * row.share, 1)}%`, "number"],
    ["said most often", (row) => row.message, "message"],
  ], failed);
  return failed.length ? draw("failures", { failures: failed }, {}, rowsHigh(new Set(failed.map((row) => row.kernel)).size)) : null;
}

function slowedBy(throttle) {
  // NVML's reasons: hardware slowdown 0x08, heat 0x20 and 0x40, power brake 0x80; software power cap 0x04.
  return throttle & 0xe8 ? "heat or hardware" : throttle & 0x04 ? "power limit" : "nothing";
}

function card() {
  const read = trials.filter((row) => here(row) && row.at != null && (row.clock_mhz != null || row.power_w != null));
  byId("card-some").hidden = !read.length;
  byId("card-none").hidden = read.length > 0;
  if (!read.length) return null;
  const runs = [...new Set(read.map((row) => row.run))].sort((a, b) => b - a);
  if (!runs.includes(state.run)) state.run = runs[0];
  options(byId("runs"), runs.map((run) => [run, `${moment(data.runs[run].started_at)} on ${data.runs[run].host}`]), state.run);
  const rows = read.filter((row) => row.run === state.run).map((row) => ({
    ...row, time: row.at * 1000, name: data.problems[row.problem].name, slowed: slowedBy(row.throttle),
  })).sort((a, b) => (a.throttle & 0xe8 ? 1 : 0) - (b.throttle & 0xe8 ? 1 : 0)); // what matters is drawn last
  return Promise.all([draw("clock", { card: rows }), draw("power", { card: rows.map((row) => ({ ...row })) })]);
}

function families() {
  const found = data.families.map((family, number) => [number, family]).filter(([, family]) => here(family));
  byId("families-some").hidden = !found.length;
  byId("families-none").hidden = found.length > 0;
  if (!found.length) return null;
  if (!found.some(([number]) => number === state.family)) state.family = (found.find(([, family]) => family.ranges.length) || found[0])[0];
  options(byId("family"), found.map(([number, family]) => [number, `${family.name} (${many(family.rungs.length, "M")} tuned)`]), state.family);
  const family = data.families[state.family];
  const check = family.check;
  byId("family-said").textContent = check
    ? `Measured at ${many(check.played, "random M")} against a short search: what these ranges serve takes ${fixed(check.geomean, 3)}× the best time in the geometric mean, ${fixed(check.worst, 3)}× at worst.` : "";
  const label = (row) => data.configs[row.config].label;
  const spans = family.ranges.map((row, i) => ({
    ...row, row: i, end: row.last + 1, kernel: data.configs[row.config].kernel, label: label(row),
    span: `${row.first} to ${row.last}`, text: `M ${row.first}–${row.last}   ${label(row)}`,
  }));
  const rungs = [];
  for (const row of family.rungs) {
    for (const [who, times] of [["winner", 1], ["torch's library", row.vs_vendor], ["default config", row.vs_default]]) {
      if (times) rungs.push({ m: row.m, who, tflops: +(row.tflops / times).toPrecision(4), ratio: ratio(1 / times), label: label(row) });
    }
  }
  const ms = [...family.rungs.map((row) => row.m), ...family.ranges.flatMap((row) => [row.first, row.last + 1])];
  const span = { first: Math.min(...ms), last: Math.max(...ms) };
  byId("ranges-chart").hidden = !spans.length;
  const speed = rungs.some((row) => row.tflops);
  byId("speed-chart").hidden = !speed;
  return Promise.all([spans.length && draw("ranges", { ranges: spans }, { ...span, present: present(spans) }, rowsHigh(spans.length)), speed && draw("speed", { rungs }, span)]);
}

function regressions() {
  const found = data.against;
  if (!found) return null;
  byId("regressions").hidden = false;
  const slower = found.changes.filter((row) => row.ratio < 0.98).length;
  byId("regressions-said").textContent = `The winners of this report beside those of ${found.name}. `
    + (found.nothing ? `Nothing can be compared: ${found.nothing}. `
      : `${many(found.changes.length, "problem")} can be compared and differ, ${slower} of them slower than before by over 2%; ${found.same} are the same. `)
    + `Times are compared only where all versions and the protocol agree${found.other_versions ? `, which leaves out ${many(found.other_versions, "problem")}` : ""}. `
    + (found.nothing ? "" : "They are of two separate measurements: between two cards of one model, or two days, up to 4% is usual.");
  byId("regressions-chart").hidden = byId("changed").hidden = !found.changes.length;
  if (!found.changes.length) return null;
  const several = data.places.length > 1;
  const named = (row, name) => (several ? `${name} on ${row.device}` : name);
  const rows = found.changes.map((row) => ({ ...row, name: named(row, row.problem), short: named(row, short(row.problem)), problem: null }));
  table(byId("changed"), [
    ["problem", (row) => row.name], ["before", (row) => row.before], ["now", (row) => (row.after === row.before ? "the same config" : row.after)],
    ["µs before", (row) => fixed(row.before_us, 2), "number"], ["µs now", (row) => fixed(row.after_us, 2), "number"],
    ["times as fast", (row) => `${fixed(row.ratio, 3)}×`, "number"],
  ], rows);
  return draw("regressions", { changes: rows }, {}, rowsHigh(rows.length));
}

function history() {
  table(byId("history-table"), [
    ["started, UTC", (row) => moment(row.started_at)], ["ended", (row) => moment(row.ended_at)], ["status", (row) => row.status],
    ["host", (row) => row.host], ["trials", (row) => row.trials.toLocaleString("en"), "number"], ["triton-tuner", (row) => row.tool_version],
    ["command", (row) => row.command, "message"],
  ], data.runs);
}

// What a page shows of the chosen problem --------------------------------------------------------------------------

function trialRows() {
  const won = winnerOf(state.problem);
  return trials.filter(chosen).map((row) => {
    const config = data.configs[row.config];
    const role = !won ? "" : row.config === won.config ? "winner" : won.tied.includes(row.config) ? "tie" : "";
    return { ...row, kernel: config.kernel, label: config.label, values: config.values, us_text: time(row.us), role };
  });
}

function references(won, search, exhaustive) {
  const lines = [];
  if (won?.vendor_us) lines.push({ us: won.vendor_us, name: "torch's library", side: "right" });
  if (won?.default_us && !exhaustive) lines.push({ us: won.default_us, name: "default config", side: "left" });
  if (exhaustive && search?.exhaustive_us) lines.push({ us: search.exhaustive_us, name: "best of all configs", side: "left" });
  return lines;
}

const present = (rows) => data.kernels.filter((name) => rows.some((row) => row.kernel === name));
const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1);

function landscape(rows) {
  const names = new Set(rows.flatMap((row) => Object.keys(row.values)));
  const valueOf = (row, name) => (name === "kernel" ? row.kernel : row.values[name]);
  const varied = ["kernel", ...[...names].sort().filter((name) => new Set(rows.map((row) => row.values[name])).size > 1)];
  // A problem of one kernel says more by the first parameter that varies.
  const usual = new Set(rows.map((row) => row.kernel)).size > 1 ? "kernel" : varied[1] ?? "kernel";
  const parameter = varied.includes(state.parameter) ? state.parameter : usual;
  options(byId("parameters"), varied.map((name) => [name, name]), parameter);
  const columns = new Map();
  for (const row of rows) {
    const value = valueOf(row, parameter);
    columns.set(value, [...(columns.get(value) || []), row]);
  }
  const placed = [];
  for (const value of [...columns.keys()].sort(order)) {
    const column = columns.get(value);
    for (const part of [column.filter((row) => row.us != null), column.filter((row) => row.us == null)]) {
      part.sort((a, b) => a.us - b.us);
      // The middle of its share of the column, with a margin, so that neighbouring columns stay apart.
      part.forEach((row, i) => placed.push({ ...row, values: null, value: value === undefined ? "—" : String(value), slot: 0.1 + (0.8 * (i + 0.5)) / part.length }));
    }
  }
  return draw("landscape", { trials: placed, references: references(winnerOf(state.problem), null, false) }, { present: present(rows) });
}

function race(rows) {
  const search = searchOf(state.problem);
  const best = search ? search.best.map(([number, us]) => ({ number, us })) : [];
  const last = search ? search.raced : 1;
  if (best.length) best.push({ number: last, us: best.at(-1).us });
  const lines = references(winnerOf(state.problem), search, true);
  const said = [];
  if (search) said.push(`${many(search.raced, "config")} tried.`);
  if (best.length) said.push(`The best, ${time(best.at(-1).us)}, was trial ${search.best.at(-1)[0]}.`);
  if (search?.exhaustive_us && best.length && search.raced === search.trials) said.push("Every config was tried.");
  else if (search?.exhaustive_us && best.length) {
    const more = 100 * (best.at(-1).us / search.exhaustive_us - 1);
    said.push(`A search that tried every config came to ${time(search.exhaustive_us)}: this one took ${fixed(Math.abs(more), 1)}% ${more >= 0 ? "longer" : "less"}.`);
  }
  byId("race-said").textContent = said.join(" ");
  return draw("race", { trials: rows.map((row) => ({ ...row, values: null })), best, stop: [{ number: last }], references: lines }, { last, present: present(rows) });
}

function showWinner() {
  const won = winnerOf(state.problem);
  const name = state.problem == null ? "" : data.problems[state.problem].name;
  for (const place of document.querySelectorAll("h2 .of")) place.textContent = name;
  pairs(byId("winner"), won ? [
    ["winning config", data.configs[won.config].label], ["time", time(won.us)], ["TFLOP/s", digits(won.tflops || null)],
    ["vs torch", ratio(won.vs_vendor)], ["vs default", ratio(won.vs_default)],
    ["tied with", won.tied.length ? many(won.tied.length, "config") : "none"], ["decided, UTC", moment(won.decided_at)],
  ] : [["winning config", "none: no config came through the final measurements"]]);
  for (const line of document.querySelectorAll("#winners tr[data-problem]")) {
    const is = Number(line.dataset.problem) === state.problem;
    line.classList.toggle("chosen", is);
    line.toggleAttribute("aria-current", is);
  }
}

async function choose(problem) {
  state.problem = problem;
  byId("problems").value = problem;
  showWinner();
  if (views.overview) views.overview.view.signal("chosen", problem).runAsync();
  const rows = trialRows();
  await Promise.all([landscape(rows), race(rows)]);
}

async function goTo(place) {
  state.place = place;
  const problems = [...new Set([...data.winners, ...data.searches].filter(here).map((row) => row.problem))].sort((a, b) => a - b);
  head();
  options(byId("problems"), problems.map((problem) => [problem, data.problems[problem].name + (winnerOf(problem) ? "" : " (no winner)")]));
  const first = winnerRows()[0]?.problem ?? problems[0];
  if (!problems.includes(state.problem)) state.problem = first;
  await Promise.all([overview(), coverage(), failures(), card(), families(), regressions()]);
  await choose(state.problem);
}

async function start() {
  document.documentElement.dataset.ready = "no";
  for (const name of Object.keys(views)) {
    views[name].finalize();
    delete views[name];
  }
  options(byId("places"), data.places.map((place, number) => [number, `${place.device} · Triton ${place.facts.triton} · torch ${place.facts.torch} · driver ${place.facts.driver || "none"}`]), state.place);
  byId("places-label").hidden = data.places.length < 2;
  history();
  await goTo(state.place);
  document.documentElement.dataset.ready = "yes";
}

byId("places").onchange = (event) => goTo(Number(event.target.value));
byId("problems").onchange = (event) => choose(Number(event.target.value));
byId("parameters").onchange = (event) => { state.parameter = event.target.value; landscape(trialRows()); };
byId("family").onchange = (event) => { state.family = Number(event.target.value); families(); };
byId("runs").onchange = (event) => { state.run = Number(event.target.value); card(); };
dark.addEventListener("change", start);
let width = innerWidth;
let pending = null;
addEventListener("resize", () => {
  clearTimeout(pending);
  if (innerWidth !== width) pending = setTimeout(() => { width = innerWidth; start(); }, 150);
});
start();
