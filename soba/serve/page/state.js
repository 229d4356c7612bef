// What the page knows of the server, and who wants to hear when it changes.

import { Problem, getJson, reason, streamPath } from "./api.js";

export const state = {
  server: null,
  streams: [],
  name: null, // of the stream that is shown
  info: null,
  points: [],
  changes: [],
};

const HISTORY = 500;
const listeners = new Map();

/** Events: server, streams, stream (another is shown), info (something of it changed), gone. */
export function on(event, listener) {
  listeners.set(event, [...(listeners.get(event) ?? []), listener]);
}

export function emit(event, ...values) {
  for (const listener of listeners.get(event) ?? []) listener(...values);
}

export async function loadServer(once) {
  state.server = await getJson("/v1/server", { patient: !once, once });
  emit("server");
}

export async function loadStreams() {
  state.streams = (await getJson("/v1/streams", { patient: true })).streams;
  emit("streams");
}

/** Show a stream: all that is known of another one is dropped at once. */
export function show(name) {
  turn += 1;
  known = "";
  Object.assign(state, { name, info: null, points: [], changes: [] });
  emit("stream");
}

let turn = 0; // answers to what was asked before a change came are not believed
let running = null;
let again = false;
let known = ""; // what curves and history were last asked for; they are not asked for again

// A server whose database is away still knows the state; curves and history then stay.
const lenient = (path) => getJson(path, { once: true }).catch(() => null);

/** Take what the server said of the stream that is shown, and ask for the rest. */
export function take(info) {
  turn += 1;
  if (info.name === state.name) {
    state.info = info;
    emit("info");
  }
  return refresh();
}

/** Ask for the stream's state; calls that come meanwhile are answered together. */
export function refresh() {
  if (running) {
    again = true;
    return running;
  }
  running = (async () => {
    do {
      again = false;
      await ask();
    } while (again);
  })().finally(() => { running = null; });
  return running;
}

async function ask() {
  const { name } = state;
  if (!name) return;
  const mine = turn;
  try {
    const info = await getJson(streamPath(name), { once: true });
    const news = JSON.stringify([name, info.version, info.n_seen, info.feedback, info.guard]);
    const [timeline, history] = news === known ? [] : await Promise.all([
      lenient(streamPath(name, "/timeline")),
      lenient(streamPath(name, `/history?limit=${HISTORY}`)),
    ]);
    emit("connection", "");
    if (mine !== turn) {
      again = again || name === state.name;
      return;
    }
    state.info = info;
    if (timeline) state.points = timeline.points;
    if (history) state.changes = history.changes;
    if (timeline && history) known = news;
    emit("info");
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Problem && error.status === 404) emit("gone", name);
    else emit("connection", reason(error));
  }
}
