// The page at /: which part is shown, the key, and a look at the server every few seconds.
//
// What tests click or read (data-testid, most also as id):
//   key-form, key, key-save; try-it; create-form: classes, name, templates, create;
//   streams, stream-link; stream-select, new-stream; stream-name, stream-facts, stale, banner,
//   banner-rollback; freeze (also unfreezes);
//   drop, choose, files, photograph, camera, camera-take, camera-close, stream-icons, only-look, min-confidence;
//   progress, stop, known, right-zero-shot, right-adapted, said, intake-error;
//   cards, card (data-id, data-label, data-zero-shot), tell-adapted, tell-zero-shot, tell-other,
//   badge-changed, badge-unsure, badge-known, filter-{all,changed,unsure,wrong}, more;
//   chart-{agreement,expected,feedback,guard} (data-points: how many points it draws);
//   evidence, evidence-class (data-class, data-queued), queue, queue-sample (data-sample);
//   guard-state, guard-open, guard-folder-input, guard-icons, guard-label, guard-files,
//   guard-chosen, guard-put, guard-remove, guard-error;
//   snapshots, rollback (data-version), rollback-version, rollback-to, history, change (data-kind), versions-error;
//   change-classes, new-classes, classes-save, export, import-file, reset, delete, manage-error;
//   ask, ask-yes, ask-no.

import { reason, setKey, whenKeyIsNeeded } from "./api.js";
import { startCards } from "./cards.js";
import { startCharts } from "./charts.js";
import { startDialogs } from "./dialogs.js";
import { byId, counted, el, setHidden, setText } from "./dom.js";
import { startEvidence } from "./evidence.js";
import { startExamples } from "./examples.js";
import { startGuard } from "./guard.js";
import { startIntake } from "./intake.js";
import { startManage } from "./manage.js";
import { busy, startSending } from "./sending.js";
import { loadServer, loadStreams, on, refresh, show, state } from "./state.js";
import { startStreams } from "./streams.js";
import { startVersions } from "./versions.js";

const EVERY = 4000; // milliseconds between two looks at the server
const PARTS = [
  ["intake", "Images"], ["over-time", "Over time"], ["evidence-panel", "Evidence"],
  ["guard", "Guard"], ["versions", "Versions"],
];

function header() {
  const { info, name } = state;
  setHidden(byId("home"), name !== null);
  setHidden(byId("stream"), name === null);
  document.title = name === null ? "soba" : `${name} · soba`;
  setText(byId("stream-name"), name ?? "");
  setHidden(byId("stale"), !info?.stale);
  byId("columns").inert = !info;
  setText(byId("stream-facts"), info
    ? [
      counted(info.classes.length, "class", "classes"), `${counted(info.n_seen, "image")} seen`,
      `version ${info.version}`, info.method, info.encoder,
    ].join(" · ")
    : "");
}

/** The stream that the address names after its #, or the first page; `moved`: from another. */
function route(moved) {
  const name = decodeURIComponent(location.hash.replace(/^#\/?/, "")) || null;
  setText(byId("try-error"), "");
  show(name);
  if (moved) {
    scrollTo(0, 0);
    document.querySelector(name === null ? "#home h1" : "#stream-name").focus();
  }
  if (name === null) loadStreams().catch((error) => connection(reason(error)));
  else refresh();
}

function connection(text) {
  setText(byId("connection"), text);
  byId("connection").classList.toggle("bad", text !== "");
}

function gone(name) {
  location.hash = "";
  setText(byId("create-error"), `There is no stream ${name} here.`);
}

function askForKey(refused) {
  const form = byId("key-form");
  setText(byId("key-error"), refused ? "The server refused that key." : "");
  byId("key").value = "";
  setHidden(form, false);
  setHidden(byId("main"), true);
  byId("key").focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      setKey(byId("key").value.trim());
      setHidden(form, true);
      setHidden(byId("main"), false);
      resolve();
    }, { once: true });
  });
}

function jumps() {
  byId("jump").append(...PARTS.map(([id, title]) => el("button", {
    type: "button", text: title,
    on: { click: () => byId(id).scrollIntoView({ behavior: "smooth", block: "start" }) },
  })));
}

async function look() {
  if (document.visibilityState !== "visible" || byId("main").hidden) return;
  if (state.server === null) await meet(true);
  if (state.name !== null && !busy()) await refresh();
}

/** What the server is and has; `once`: without waiting for one that is away. */
async function meet(once) {
  try {
    await loadServer(once);
    await loadStreams();
    connection("");
  } catch (error) {
    connection(reason(error));
  }
}

async function start() {
  whenKeyIsNeeded(askForKey);
  jumps();
  for (const part of [
    startStreams, startCharts, startCards, startEvidence, startSending, startIntake, startExamples,
    startGuard, startVersions, startManage, startDialogs,
  ]) part();
  on("stream", header);
  on("info", header);
  on("connection", connection);
  on("gone", gone);
  addEventListener("hashchange", () => route(true));
  document.addEventListener("visibilitychange", look);
  setInterval(look, EVERY);
  await meet(false);
  route(false);
}

start();
