// Curves over the images of a stream: agreement, expected accuracy, feedback and guard.

import { byId, counted, el, isNew, percent, svg } from "./dom.js";
import { on, state } from "./state.js";

const HEIGHT = 104;
const LEFT = 34;
const EDGE = 7;
const MOST = 400; // points that are drawn

const both = (values) => values && { "zero-shot": values.zero_shot, adapted: values.adapted };
const of = (share) => share?.accuracy ?? null;

// What is read from a point of the timeline, and from the stream's state as it is now.
const CHARTS = [
  {
    key: "agreement",
    title: "Agreement",
    empty: "Nothing yet: send images, and here is the share of answers that are zero-shot's, too.",
    point: (p) => p.agreement !== null && { adapted: p.agreement },
    now: (info) => info.agreement !== null && { adapted: info.agreement },
    note: () => "with zero-shot, of the last 1,000 answers",
  },
  {
    key: "expected",
    title: "Expected accuracy",
    empty: "Nothing yet: once the stream has learned, here is how often it expects to be right. It needs no labels.",
    point: (p) => both(p.expected_accuracy),
    now: (info) => both(info.expected_accuracy),
    note: () => "by its own probabilities, without labels",
  },
  {
    key: "feedback",
    title: "Feedback accuracy",
    empty: "Nothing yet: say of some answers which is right.",
    point: (p) => both(p.feedback),
    now: ({ feedback: f }) => f.count > 0 && both({ zero_shot: of(f.zero_shot), adapted: of(f.adapted) }),
    note: ({ feedback: f }) => {
      const { low, high } = f.adapted;
      return `${counted(f.count, "answer")} judged; adapted is at ${percent(low)} to ${percent(high)} (95% interval)`;
    },
  },
  {
    key: "guard",
    title: "Guard accuracy",
    empty: "No guard yet: choose a few labelled images below.",
    point: (p) => both(p.guard),
    now: ({ guard: g }) => g && both({ zero_shot: of(g.zero_shot), adapted: of(g.adapted) }),
    note: ({ guard: g }) => (g ? `${counted(g.images, "image")}, checked at each refresh` : ""),
  },
];

export function startCharts() {
  const tiles = CHARTS.map(tile);
  byId("charts").append(...tiles.map((t) => t.figure));
  const draw = () => tiles.forEach((t) => t.update());
  on("info", draw);
  on("stream", draw);
  new ResizeObserver(() => tiles.forEach((t) => t.redraw())).observe(byId("charts"));
}

function tile(chart) {
  const numbers = el("span", { class: "numbers" });
  const plot = el("div", { class: "plot" });
  const note = el("p", { class: "hint" });
  const title = el("span", { text: chart.title });
  const figure = el(
    "figure",
    { class: "chart", "data-testid": `chart-${chart.key}`, "data-points": "0" },
    el("figcaption", {}, title, numbers),
    plot,
    note,
  );
  const holder = {};
  let rows = [];
  let width = 0;
  const redraw = () => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    if (rows.length) paint(plot, chart, rows, note);
  };
  const update = () => {
    const { info } = state;
    rows = info ? series(chart) : [];
    if (!isNew(holder, [info?.name, rows, info && chart.note(info)])) return;
    figure.dataset.points = rows.length;
    figure.classList.toggle("nothing", rows.length === 0);
    numbers.replaceChildren(...(rows.length ? legend(rows.at(-1).values) : []));
    note.textContent = rows.length ? chart.note(info) : info ? chart.empty : "";
    note.dataset.rest = note.textContent;
    if (rows.length) paint(plot, chart, rows, note);
    else plot.replaceChildren();
  };
  return { figure, update, redraw };
}

/** Points with a place on the axis: images seen, and at least one step each, so that all show. */
function series(chart) {
  const rows = [];
  let x = 0;
  let before = null;
  const add = (at, values) => {
    x += before === null ? 0 : Math.max(1, at.n_seen - before.n_seen);
    before = at;
    if (values) rows.push({ x, n_seen: at.n_seen, version: at.version, values });
  };
  for (const point of state.points) add(point, chart.point(point));
  const now = chart.now(state.info);
  const last = rows.at(-1);
  const moved = !last || JSON.stringify(last.values) !== JSON.stringify(now);
  if (now && moved) add(state.info, now);
  if (rows.length <= MOST) return rows;
  const stride = Math.ceil(rows.length / MOST);
  return rows.filter((_, k) => k % stride === 0 || k === rows.length - 1);
}

const kinds = (values) => Object.keys(values).filter((kind) => values[kind] !== null);
const legend = (values) =>
  kinds(values).map((kind) => el("b", { class: `${kind} ink`, text: percent(values[kind]) }));

/** The bounds of the axis: tenths around the values, at least two of them apart. */
function bounds(rows) {
  const values = rows.flatMap((row) => kinds(row.values).map((kind) => row.values[kind]));
  let low = Math.floor(10 * Math.min(...values) - 0.2) / 10;
  let high = Math.ceil(10 * Math.max(...values) + 0.2) / 10;
  if (high - low < 0.2) low = high - 0.2;
  low = Math.max(0, low);
  high = Math.min(1, Math.max(high, low + 0.2));
  return [Math.min(low, high - 0.2), high];
}

function paint(plot, chart, rows, note) {
  const width = Math.max(160, plot.clientWidth);
  const [low, high] = bounds(rows);
  const across = rows.at(-1).x - rows[0].x || 1;
  const px = (row) => LEFT + ((row.x - rows[0].x) / across) * (width - LEFT - EDGE);
  const py = (value) => EDGE + ((high - value) / (high - low)) * (HEIGHT - 24 - EDGE);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", tabindex: 0,
    "aria-label": summary(chart, rows),
  });
  for (const value of [low, (low + high) / 2, high]) {
    const y = py(value);
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - EDGE, y1: y, y2: y }));
    picture.append(label(percent(value), LEFT - 5, y + 3.5, "end"));
  }
  picture.append(label(counted(rows[0].n_seen, "image"), LEFT, HEIGHT - 4, "start"));
  if (rows.length > 1) {
    picture.append(label(counted(rows.at(-1).n_seen, "image"), width - EDGE, HEIGHT - 4, "end"));
  }
  for (const kind of ["zero-shot", "adapted"]) {
    const there = rows.filter((row) => (row.values[kind] ?? null) !== null);
    if (!there.length) continue;
    const path = there.map((row) => `${px(row).toFixed(1)},${py(row.values[kind]).toFixed(1)}`);
    picture.append(svg("polyline", { class: `curve ${kind}`, points: path.join(" ") }));
    const end = there.at(-1);
    picture.append(svg("circle", { class: `dot ${kind}`, cx: px(end), cy: py(end.values[kind]), r: kind === "adapted" ? 3 : 4.5 }));
  }
  reader(picture, rows, px, note);
  const focused = plot.contains(document.activeElement);
  plot.replaceChildren(picture);
  if (focused) picture.focus({ preventScroll: true });
}

function label(text, x, y, anchor) {
  const node = svg("text", { x, y, "text-anchor": anchor });
  node.textContent = text;
  return node;
}

const worded = (values) => kinds(values).map((kind) => `${kind} ${percent(values[kind])}`).join(", ");

function summary(chart, rows) {
  const last = rows.at(-1);
  return `${chart.title}: first ${worded(rows[0].values)}; after ${counted(last.n_seen, "image")} ${worded(last.values)}.`;
}

/** Pointer and arrow keys read one point after the other. */
function reader(picture, rows, px, note) {
  const cross = svg("line", { class: "cross", y1: EDGE, y2: HEIGHT - 24, visibility: "hidden" });
  picture.append(cross);
  let at = rows.length - 1;
  const read = (k) => {
    at = Math.max(0, Math.min(rows.length - 1, k));
    const x = px(rows[at]);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    note.textContent = `${counted(rows[at].n_seen, "image")}, version ${rows[at].version}: ${worded(rows[at].values)}`;
  };
  const rest = () => {
    cross.setAttribute("visibility", "hidden");
    note.textContent = note.dataset.rest;
  };
  picture.addEventListener("pointermove", (event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    let best = 0;
    rows.forEach((row, k) => { if (Math.abs(px(row) - x) < Math.abs(px(rows[best]) - x)) best = k; });
    read(best);
  });
  picture.addEventListener("pointerleave", rest);
  picture.addEventListener("blur", rest);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    read(at + step);
  });
}
