// How many samples speak for each class, and which speak best.

import { getJson, reason, streamPath } from "./api.js";
import { bar, byId, counted, el, isNew, refill, setHidden, setText } from "./dom.js";
import { on, state } from "./state.js";
import { find } from "./thumbnails.js";

const FEW = 60; // classes that are listed at first

let open = null; // the class whose samples are shown
let all = false;
let queue = null; // {name, samples, thumbnails, error} of the open class
let urls = [];
const holder = {};

export function startEvidence() {
  on("stream", () => {
    open = queue = null;
    all = false;
    draw();
  });
  on("info", () => {
    draw();
    if (open !== null) load();
  });
  byId("evidence-more").addEventListener("click", () => {
    all = true;
    draw();
  });
}

function draw() {
  const { info } = state;
  const evidence = info?.evidence ?? [];
  if (!isNew(holder, [info?.name, evidence, open, all, queue && [queue.name, queue.samples, queue.error]])) return;
  const queued = evidence.reduce((sum, row) => sum + row.queued, 0);
  setText(byId("evidence-words"), queued
    ? "How many of the samples that are kept speak for each class. Choose a class to see the best."
    : "No sample speaks for a class yet. They do once the stream has learned enough.");
  const most = Math.max(1, ...evidence.map((row) => row.queued));
  const listed = all ? evidence : evidence.slice(0, FEW);
  const items = listed.flatMap((row) => (row.class === open ? [item(row, most), holds(row)] : [item(row, most)]));
  refill(byId("evidence"), ...items);
  setHidden(byId("evidence-more"), listed.length === evidence.length);
  setText(byId("evidence-more"), `Show all ${evidence.length} classes`);
}

function item(row, most) {
  const { class: name, queued, capacity } = row;
  const count = capacity === null ? String(queued) : `${queued}/${capacity}`;
  return el("li", {}, el("button", {
    type: "button", class: "class", "aria-expanded": String(name === open), "data-key": name,
    "data-testid": "evidence-class", "data-class": name, "data-queued": String(queued),
    "aria-label": `${name}: ${counted(queued, "sample")}`,
    on: { click: () => toggle(name) },
  },
  el("span", { class: "name", text: name, title: name }),
  el("span", { class: "count", text: count }),
  bar(queued / (capacity ?? most), "adapted")));
}

function toggle(name) {
  open = open === name ? null : name;
  queue = null;
  draw();
  if (open !== null) load();
}

async function load() {
  const [stream, name] = [state.name, open];
  let next;
  try {
    const { samples } = await getJson(streamPath(stream, `/queue/${encodeURIComponent(name)}`));
    const thumbnails = await find(samples.map((sample) => sample.sample));
    next = { name, samples, thumbnails, error: null };
  } catch (error) {
    next = { name, samples: [], thumbnails: new Map(), error: reason(error) };
  }
  if (stream !== state.name || name !== open) return;
  queue = next;
  draw();
}

function holds(row) {
  const panel = el("li", { class: "queue", "data-testid": "queue" });
  urls.forEach((url) => URL.revokeObjectURL(url));
  urls = [];
  if (!queue) panel.append(el("p", { class: "hint", text: "asking…" }));
  else if (queue.error) panel.append(el("p", { class: "error", text: queue.error }));
  else if (!queue.samples.length) {
    panel.append(el("p", { class: "hint", text: `Nothing is kept of ${row.class} yet.` }));
  } else {
    panel.append(
      el("p", { class: "hint", text: words(row.class) }),
      el("ul", { class: "plain strip" }, ...queue.samples.map(sample)),
    );
  }
  return panel;
}

function words(name) {
  return queue.samples[0].entropy === null
    ? `What ${name} explains best of what is kept (probability below).`
    : `What is kept of ${name}, surest first (entropy below).`;
}

function sample({ sample: id, entropy, probability }) {
  const blob = queue.thumbnails.get(id);
  const [what, number] = entropy === null ? ["probability", probability] : ["entropy", entropy];
  const title = `sample ${id}, ${what} ${number.toFixed(3)}`;
  let picture = el("span", { class: "none", title: `${title}; it did not pass through this browser`, text: id });
  if (blob) {
    urls.push(URL.createObjectURL(blob));
    picture = el("img", { src: urls.at(-1), alt: title, title });
  }
  return el("li", { "data-testid": "queue-sample", "data-sample": id }, picture,
    el("span", { class: "soft", text: number.toFixed(2) }));
}
