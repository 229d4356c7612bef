// "Try it": the server's icons, whose labels are known, streamed through a stream of their own.

import { call, getJson, reason } from "./api.js";
import { bar, byId, counted, el, percent, setHidden, setText } from "./dom.js";
import { busy, send } from "./sending.js";
import { loadStreams, on, state } from "./state.js";

let loaded = null; // {classes, images, labels}
let pending = null; // a stream that gets the icons as soon as it is shown

export const examples = () => (loaded ??= getJson("/v1/examples", { patient: true }));

export async function exampleFile(n, signal) {
  return (await call("GET", `/v1/examples/${n}`, { signal, patient: true })).blob();
}

export function startExamples() {
  on("server", () => {
    setHidden(byId("try-box"), !state.server.examples);
    setText(byId("try-words"), "streams drawn icons, whose names are known, through a stream of its own");
  });
  byId("try-it").addEventListener("click", tryIt);
  byId("stream-icons").addEventListener("click", run);
  for (const event of ["stream", "info", "sent"]) on(event, draw);
  on("info", () => {
    if (state.name !== pending) return;
    pending = null;
    run();
  });
}

async function tryIt() {
  byId("try-it").disabled = true;
  setText(byId("try-error"), "");
  try {
    const { classes } = await examples();
    await loadStreams();
    const name = freeName("icons");
    await call("POST", "/v1/streams", { json: { name, classes } });
    await loadStreams();
    sessionStorage.removeItem(key(name));
    pending = name;
    location.hash = `#/${name}`;
  } catch (error) {
    loaded = null;
    setText(byId("try-error"), reason(error));
  } finally {
    byId("try-it").disabled = false;
  }
}

export function freeName(name) {
  const taken = new Set(state.streams.map((stream) => stream.name));
  if (!taken.has(name)) return name;
  let k = 2;
  while (taken.has(`${name}-${k}`)) k += 1;
  return `${name}-${k}`;
}

/** Where a stream's icons are, and how many were right: kept in the tab, so that it goes on. */
const key = (name) => `soba-icons ${name}`;
const read = (name) => JSON.parse(sessionStorage.getItem(key(name)) ?? "null");
const write = (name, count) => sessionStorage.setItem(key(name), JSON.stringify(count));

async function run() {
  const { name } = state;
  const { labels, images } = await examples();
  if (name !== state.name) return; // another stream is shown by now
  let count = read(name);
  if (!count || count.next >= images) count = { next: 0, answered: 0, adapted: 0, zeroShot: 0, images };
  write(name, count);
  const items = [];
  for (let n = count.next; n < images; n += 1) {
    items.push({ name: `icon ${n}.png`, known: labels[n], fetch: (signal) => exampleFile(n, signal) });
  }
  const learn = !byId("only-look").checked;
  const batched = (answers, sent) => {
    answers.forEach((answered, k) => {
      count.answered += 1;
      count.adapted += answered.label === sent[k].known ? 1 : 0;
      count.zeroShot += answered.zero_shot?.label === sent[k].known ? 1 : 0;
    });
    count.next += sent.length;
    write(name, count);
    draw();
  };
  const sending = send(items, { learn, batched });
  draw();
  await sending;
  draw();
}

async function draw() {
  const { info, name, server } = state;
  const count = name ? read(name) : null;
  const button = byId("stream-icons");
  if (!info || !server?.examples) {
    setHidden(button, true);
    setHidden(byId("known"), true);
    return;
  }
  const fitting = await fits(info);
  if (name !== state.name) return;
  setHidden(button, !fitting);
  button.disabled = busy();
  const part = count && count.next > 0 && count.next < count.images;
  setText(button, part ? "Go on with the icons" : "Stream the icons");
  setHidden(byId("known"), !count?.answered);
  if (count?.answered) score(count);
}

async function fits(info) {
  try {
    const { classes } = await examples();
    return classes.every((label) => info.classes.includes(label));
  } catch {
    loaded = null;
    return false;
  }
}

function score(count) {
  const row = (title, kind, right) => {
    const share = right / count.answered;
    return el("div", { class: "score" },
      el("span", { class: `${kind} ink`, text: title }),
      bar(share, kind),
      el("span", { "data-testid": `right-${kind}`, text: `${right} right, ${percent(share)}` }));
  };
  byId("known").replaceChildren(
    el("p", { class: "hint", text: `Of ${counted(count.answered, "icon")} whose names are known (nothing learns from the names):` }),
    row("zero-shot", "zero-shot", count.zeroShot),
    row("adapted", "adapted", count.adapted),
  );
}
