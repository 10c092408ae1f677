"use strict";
// Panels of one dashboard, drawn from the series that the server of `bivouac dashboard` answers with.

const RANGES = { "15 min": 900, "1 h": 3600, "6 h": 21600, "24 h": 86400, "7 d": 604800, all: 0 };
const REFRESH_MS = 15000, HEIGHT = 200, LINES = 8, LEGENDS = 16;
const state = { boards: [], board: "", range: "all", live: false, across: false, charts: [], round: 0 };
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function scaled(value, base, units) {
  let place = 0;
  let rest = Math.abs(value);
  while (rest >= base && place < units.length - 1) { rest /= base; place += 1; }
  return `${value < 0 ? "-" : ""}${plain(rest)} ${units[place]}`.trim();
}

function plain(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e15)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 7 : 4 });
}

function seconds(value) {
  const size = Math.abs(value);
  if (size < 1 && size > 0) return `${plain(value * 1000)} ms`;
  if (size < 120) return `${plain(value)} s`;
  if (size < 7200) return `${plain(value / 60)} min`;
  return size < 172800 ? `${plain(value / 3600)} h` : `${plain(value / 86400)} d`;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const FORMATS = {
  s: seconds,
  percent: (value) => `${plain(value)} %`,
  percentunit: (value) => `${plain(value * 100)} %`,
  bytes: (value) => scaled(value, 1024, BYTES),
  mbytes: (value) => scaled(value, 1024, BYTES.slice(2)),
  gbytes: (value) => scaled(value, 1024, BYTES.slice(3)),
  Bps: (value) => `${scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"])}/s`,
  flops: (value) => scaled(value, 1000, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"]),
  celsius: (value) => `${plain(value)} °C`,
  watt: (value) => scaled(value, 1000, ["W", "kW", "MW"]),
  currencyUSD: (value) => `${Math.abs(value) < 1 ? plain(value) : plain(Number(value.toFixed(2)))} USD`,
  none: (value) => (Math.abs(value) < 1e6 ? plain(value) : scaled(value, 1000, ["", "k", "M", "G", "T", "P"])),
};

function since(time, increment) {
  if (increment < 60) return `${Math.floor(time / 60)}:${String(time % 60).padStart(2, "0")}`;
  const [length, unit] = increment < 3600 ? [60, "min"] : increment < 86400 ? [3600, "h"] : [86400, "d"];
  return `${plain(time / length)} ${unit}`;
}

function clock(plot, times, axis, space, increment) {
  // All times are UTC, as in the record; side by side, each campaign's own time since its begin.
  return times.map((time) => {
    if (state.across) return since(time, increment);
    const text = new Date(time * 1000).toISOString();
    if (increment >= 86400 || text.slice(11, 19) === "00:00:00") return text.slice(5, 10);
    return text.slice(11, increment < 60 ? 19 : 16);
  });
}

const widthOf = (plot, texts) => 22 + 6.6 * Math.max(2, ...(texts || []).map((text) => (text || "").length));

function table(answer) {
  // Rows of one step are equally far apart, but a series may lack some of them.
  const times = [...new Set(answer.series.flatMap((row) => row.points.map((point) => point[0])))].sort((a, b) => a - b);
  const places = new Map(times.map((time, place) => [time, place]));
  const columns = answer.series.map((row) => {
    const column = new Array(times.length).fill(null);
    for (const [time, value] of row.points) column[places.get(time)] = value;
    return column;
  });
  return [times, ...columns];
}

function draw(section, panel, answer) {
  const data = table(answer);
  const format = FORMATS[panel.unit] || FORMATS.none;
  const lines = answer.series.map((row, number) => colour(`--line${number % LINES}`));
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 } };
  const list = document.createElement("ul");
  list.className = "legend";
  const figures = answer.series.slice(0, LEGENDS).map((row, number) => {
    const item = element("li", "", list);
    element("i", "", item).style.background = lines[number];
    element("span", row.legend, item);
    return element("b", "", item);
  });
  const hidden = answer.series.length - LEGENDS + answer.more;
  if (hidden > 0) element("li", `and ${hidden} more`, list);
  const show = (place) => figures.forEach((figure, number) => {
    const column = data[number + 1];
    const value = place === null || place === undefined ? column.findLast((one) => one !== null) : column[place];
    figure.textContent = value === null || value === undefined ? "no value" : format(value);
  });
  const holder = element("div", "", section);
  const options = {
    width: holder.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { sync: { key: "time" }, y: false },
    scales: { x: { time: true, range: [answer.begin, answer.end] }, y: { range: (plot, least, most) => around(least, most, panel.zero) } },
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    axes: [{ ...axis, size: 30, values: clock }, { ...axis, size: widthOf, values: (plot, ticks) => ticks.map(format) }],
    series: [{}, ...lines.map((stroke) => ({ stroke, width: 1.6, spanGaps: false, points: { show: data[0].length < 3, size: 5 } }))],
    hooks: { setCursor: [(plot) => show(plot.cursor.idx)] },
  };
  const plot = new uPlot(options, data, holder);
  section.append(list);
  show(null);
  state.charts.push({ plot, holder });
}

function around(least, most, zero) {
  if (least === null) return [0, 1];
  const low = zero ? Math.min(0, least) : least;
  const room = (most - low || Math.abs(most) || 1) * 0.06;
  return [zero && low === 0 ? 0 : low - room, most + room];
}

async function show() {
  const round = (state.round += 1);
  const board = state.boards.find((one) => one.name === state.board);
  const since = RANGES[state.range];
  const answers = await Promise.all(board.panels.map(async (panel, number) => {
    try {
      return await (await fetch(`series/${board.name}/${number}?since=${since}`)).json();
    } catch (error) {
      return { error: `the command that serves this page has ended: ${error.message}` };
    }
  }));
  if (round !== state.round) return;
  state.charts.forEach(({ plot }) => plot.destroy());
  state.charts = [];
  const main = byId("panels");
  main.replaceChildren();
  if (state.across) compare(element("section", "", main), board.panels, answers);
  board.panels.forEach((panel, number) => {
    const section = element("section", "", main);
    element("h2", panel.title, section);
    const answer = answers[number];
    if (answer.series && answer.series.length) return draw(section, panel, answer);
    const lack = panel.of ? `no series: ${panel.of} may not be installed` : "no series in this time";
    element("p", answer.error || lack, section).className = "words";
  });
  main.dataset.drawn = board.name;
}

function compare(section, panels, answers) {
  // The last value of each campaign in each panel.
  section.className = "wide";
  const rows = new Map();
  answers.forEach((answer, number) => (answer.series || []).forEach((row) => {
    const last = row.points.findLast((point) => point[1] !== null);
    if (last) rows.set(row.legend, [...(rows.get(row.legend) || []), [number, last[1]]]);
  }));
  const table = element("table", "", section);
  const head = element("tr", "", element("thead", "", table));
  ["At its end", ...panels.map((panel) => panel.title)].forEach((title) => { element("th", title, head).scope = "col"; });
  const body = element("tbody", "", table);
  for (const [campaign, values] of [...rows].sort()) {
    const line = element("tr", "", body);
    element("th", campaign, line).scope = "row";
    panels.forEach((panel, number) => {
      const value = values.find(([place]) => place === number);
      element("td", value ? (FORMATS[panel.unit] || FORMATS.none)(value[1]) : "not known", line);
    });
  }
}

function choice(parent, names, present, choose) {
  parent.replaceChildren();
  for (const [key, title] of names) {
    const button = element("button", title, parent);
    button.type = "button";
    button.setAttribute("aria-pressed", String(key === present));
    button.addEventListener("click", () => choose(key));
  }
}

function select(changes) {
  Object.assign(state, changes);
  location.hash = `${state.board}/${state.range}`;
  choice(byId("boards"), state.boards.map((one) => [one.name, one.title]), state.board, (board) => select({ board }));
  byId("ranges").hidden = state.across;
  choice(byId("ranges"), Object.keys(RANGES).map((one) => [one, one]), state.range, (range) => select({ range }));
  show();
}

async function begin() {
  const facts = await (await fetch("panels")).json();
  Object.assign(state, { boards: facts.boards, live: facts.live, across: facts.across });
  document.title = `${facts.campaign} · Bivouac`;
  byId("campaign").textContent = facts.campaign;
  byId("origin").textContent = `${facts.origin}; ${facts.across ? "times count from each one's begin" : "times are UTC"}`;
  const [board, range] = decodeURIComponent(location.hash.slice(1)).split("/");
  const isKnown = facts.boards.some((one) => one.name === board);
  select({ board: isKnown ? board : facts.boards[0].name, range: range in RANGES && !facts.across ? range : "all" });
  if (facts.live) setInterval(() => document.hidden || show(), REFRESH_MS);
  new ResizeObserver(() => state.charts.forEach(({ plot, holder }) => plot.setSize({ width: holder.clientWidth, height: HEIGHT })))
    .observe(byId("panels"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

begin().catch((error) => { byId("origin").textContent = `the panels cannot be read: ${error.message}`; });
