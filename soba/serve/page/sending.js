// Images on their way: small batches one after the other, a job a stream, with a stop button.

import { Problem, call, reason, streamPath } from "./api.js";
import { answer, begin, draw, fail } from "./cards.js";
import { byId, counted, setHidden, setText } from "./dom.js";
import { emit, on, refresh, state } from "./state.js";
import { keep, shrink } from "./thumbnails.js";

const BATCH = 8;
const SMALLER = 1024; // pixels a side, of pictures that are more than the server takes

const jobs = new Map(); // stream -> job

export const busy = () => jobs.has(state.name);

export function startSending() {
  byId("stop").addEventListener("click", () => jobs.get(state.name)?.stop.abort());
  on("stream", () => {
    say("");
    trouble("");
    progress();
  });
  on("said", say);
}

/**
 * Send items: {name, file or fetch(), known label}. More items for a stream that is being served
 * wait their turn. `batched(answers, items)` hears of each batch; resolves to how many were sent.
 */
export function send(items, { learn = true, batched = null } = {}) {
  const parcel = { items, learn, batched, next: 0 };
  const running = jobs.get(state.name);
  if (running) {
    running.parcels.push(parcel);
    running.total += items.length;
    progress();
    return new Promise((resolve) => { parcel.over = () => resolve(parcel.next); });
  }
  const job = {
    stream: state.name, parcels: [parcel], total: items.length, done: 0, wait: "",
    stop: new AbortController(),
  };
  jobs.set(job.stream, job);
  return work(job).then(() => parcel.next);
}

async function work(job) {
  const tally = { changed: 0, unsure: 0, learned: 0, broken: 0, answered: 0, frozen: false, learn: true, stale: false };
  trouble("");
  progress();
  try {
    for (const parcel of job.parcels) { // grows while it is worked on
      while (parcel.next < parcel.items.length) {
        if (job.stop.signal.aborted) throw new DOMException("stopped", "AbortError");
        await batch(job, parcel, tally);
      }
      parcel.over?.();
    }
    summary(job, tally, "");
  } catch (error) {
    const left = job.total - job.done;
    if (error.name === "AbortError") summary(job, tally, `Stopped; ${counted(left, "image")} not sent. `);
    else if (job.stream === state.name) trouble(`${reason(error)} ${left ? `${counted(left, "image")} not sent.` : ""}`);
    job.parcels.forEach((parcel) => parcel.over?.());
  } finally {
    jobs.delete(job.stream);
    progress();
    if (job.stream === state.name) refresh();
    emit("sent", job.stream);
  }
}

async function batch(job, parcel, tally) {
  const { limits } = state.server;
  const wanted = parcel.items.slice(parcel.next, parcel.next + Math.min(BATCH, limits.images));
  const items = [];
  let bytes = 0;
  for (const item of wanted) {
    await prepare(item, limits, job.stop.signal);
    if (items.length && bytes + item.file.size > 0.9 * limits.body_bytes) break;
    items.push(item);
    bytes += item.file.size;
  }
  const cards = begin(job.stream, items);
  const body = new FormData();
  for (const item of items) body.append("image", item.file, item.name);
  const min = byId("min-confidence").value;
  const path = streamPath(job.stream, `/classify?learn=${parcel.learn}&top=3&min_confidence=${min}`);
  try {
    const response = await call("POST", path, {
      body, stop: job.stop.signal, patient: true, waiting: (s, why) => waiting(job, s, why),
    });
    const classified = await response.json();
    classified.answers.forEach((answered, k) => {
      answer(cards[k], answered, classified.answers_by);
      if (answered.sample && items[k].thumbnail) keep(answered.sample, items[k].thumbnail);
    });
    count(tally, classified, parcel);
    parcel.batched?.(classified.answers, items);
  } catch (error) {
    const why = error.name === "AbortError" ? "stopped before the answer came" : reason(error);
    cards.forEach((card, k) => fail(card, error.body?.answers?.[k]?.error ?? why));
    if (!(error instanceof Problem && [413, 415, 422].includes(error.status))) throw error;
    tally.broken += items.length; // of these images; others may be fine
  }
  job.wait = "";
  parcel.next += items.length;
  job.done += items.length;
  progress();
  if (job.stream === state.name) {
    draw();
    refresh();
  }
}

/** An item's bytes and thumbnail; a picture that is too large for the server is sent smaller. */
async function prepare(item, limits, signal) {
  if (!item.file) item.file = await item.fetch(signal);
  if (item.url !== undefined) return;
  const small = await shrink(item.file);
  item.thumbnail = small?.blob ?? null;
  item.url = small ? URL.createObjectURL(small.blob) : null;
  if (small && (item.file.size > 0.8 * limits.body_bytes || small.pixels > limits.pixels)) {
    item.file = (await shrink(item.file, SMALLER)).blob;
  }
}

function count(tally, classified, parcel) {
  for (const { error, changed, unsure } of classified.answers) {
    tally.answered += error ? 0 : 1;
    tally.broken += error ? 1 : 0;
    tally.changed += changed && !error ? 1 : 0;
    tally.unsure += unsure && !error ? 1 : 0;
  }
  tally.learned += classified.learned;
  tally.frozen = classified.frozen;
  tally.stale ||= classified.stale;
  tally.learn = parcel.learn;
}

function summary(job, tally, prefix) {
  if (job.stream !== state.name) return;
  const parts = [`${counted(tally.answered, "image")} answered`];
  if (tally.changed) parts.push(`${tally.changed} otherwise than zero-shot`);
  if (tally.unsure) parts.push(`${tally.unsure} unsure`);
  if (tally.broken) parts.push(`${tally.broken} could not be read`);
  if (!tally.learn) parts.push("only looked");
  else if (tally.frozen) parts.push("nothing learned, since the stream is frozen");
  else if (!tally.learned) parts.push(tally.answered ? "nothing learned, since all were known" : "nothing learned");
  else if (tally.learned < tally.answered) {
    parts.push(`learned from ${tally.learned}, the others were known`);
  } else parts.push(`learned from ${tally.learned === 1 ? "it" : "all"}`);
  if (tally.stale) parts.push("by what was known before the database went away");
  say(`${prefix}${parts.join(", ")}.`);
}

function waiting(job, seconds, why) {
  job.wait = `${why} Tries again in ${Math.ceil(seconds)} s.`;
  progress();
}

function progress() {
  const job = jobs.get(state.name);
  setHidden(byId("progress"), !job);
  if (!job) return;
  byId("progress-bar").max = job.total;
  byId("progress-bar").value = job.done;
  setText(byId("progress-words"), job.wait || `${job.done} of ${counted(job.total, "image")}`);
}

function say(text) {
  setText(byId("said"), text);
}

function trouble(text) {
  setText(byId("intake-error"), text);
}
