// A few labelled images that the stream is checked with, and the banner where it failed.

import { reason } from "./api.js";
import { act, ask } from "./dialogs.js";
import { bar, byId, counted, el, isNew, percent, refill, setHidden, setText } from "./dom.js";
import { exampleFile, examples } from "./examples.js";
import { on, state } from "./state.js";
import { shrink } from "./thumbnails.js";
import { freezing, rollBack } from "./versions.js";

const ENOUGH = 512; // pixels a side, of guard images that are too many bytes as they are
const PER_CLASS = 3;

let chosen = []; // {file, name, label}
const drawn = {};
const labelled = {};

export function startGuard() {
  on("stream", () => {
    choose([]);
    for (const id of ["guard-said", "guard-error"]) setText(byId(id), "");
    byId("guard-set").open = false;
    draw();
  });
  on("info", draw);
  const click = (id, listener) => byId(id).addEventListener("click", listener);
  click("guard-folder", () => byId("guard-folder-input").click());
  click("guard-pick", () => byId("guard-files").click());
  click("guard-clear", () => choose([]));
  click("guard-icons", icons);
  click("guard-put", put);
  byId("guard-folder-input").addEventListener("change", folder);
  byId("guard-files").addEventListener("change", () => {
    const label = byId("guard-label").value;
    choose([...chosen, ...[...byId("guard-files").files].map((file) => ({ file, name: file.name, label }))]);
    byId("guard-files").value = "";
  });
}

function draw() {
  const { info } = state;
  if (!isNew(drawn, [info?.name, info?.guard, info?.classes, info?.frozen_by, info?.answers_by, info?.last_good_version])) return;
  banner();
  if (!info) return;
  refill(byId("guard-state"), ...(info.guard ? described(info.guard) : [
    el("p", { class: "empty", text: "No guard. Whoever sends images can teach a stream rubbish, and a few labelled images tell: when it does clearly worse on them than zero-shot, the stream freezes and answers by zero-shot." }),
  ]));
  if (isNew(labelled, info.classes)) {
    refill(byId("guard-label"), ...info.classes.map((name) => el("option", { value: name, text: name })));
  }
  setHidden(byId("guard-icons"), true);
  if (state.server?.examples) {
    examples().then(({ classes }) => {
      setHidden(byId("guard-icons"), !classes.every((name) => state.info?.classes.includes(name)));
    }, () => {});
  }
}

function described(guard) {
  const row = (title, kind, share) => el("div", { class: "score" },
    el("span", { class: `${kind} ink`, text: title }),
    bar(share.accuracy, kind),
    el("span", { text: `${share.right} right, ${percent(share.accuracy)}` }));
  const verdict = guard.failed
    ? el("p", { class: "bad", text: `Failed at version ${guard.version}: worse than zero-shot (p = ${guard.p_value.toPrecision(2)}).` })
    : el("p", { class: "good", text: `Passed at version ${guard.version} (p = ${guard.p_value.toPrecision(2)}; it fails at 0.05).` });
  return [
    verdict,
    el("p", { class: "hint", text: `Of ${counted(guard.images, "labelled image")}:` }),
    row("zero-shot", "zero-shot", guard.zero_shot),
    row("adapted", "adapted", guard.adapted),
    el("div", { class: "row" }, el("button", {
      type: "button", class: "quiet", text: "Remove the guard", "data-key": "remove", "data-testid": "guard-remove",
      on: { click: remove },
    })),
  ];
}

function banner() {
  const { info } = state;
  const box = byId("banner");
  const failed = info?.frozen && info.answers_by === "zero-shot";
  setHidden(box, !info?.frozen);
  box.classList.toggle("bad", Boolean(failed));
  if (!info?.frozen) box.replaceChildren();
  else refill(box, ...(failed ? failedBanner(info) : frozenBanner(info)));
}

function frozenBanner(info) {
  const words = info.frozen_by === "guard"
    ? ["The guard passes again. ", "Answers are adapted; the stream learns again once you unfreeze it."]
    : ["Frozen by hand. ", "Answers come from what was learned up to now; nothing is learned until you unfreeze it."];
  return [
    el("p", {}, el("b", { text: words[0] }), words[1]),
    el("button", {
      type: "button", text: "Unfreeze", "data-key": "unfreeze", "data-testid": "banner-unfreeze",
      on: { click: (event) => freezing(event.currentTarget) },
    }),
  ];
}

function failedBanner({ guard, last_good_version: good }) {
  const figures = guard
    ? ` On its ${guard.images} guard images adapted has ${guard.adapted.right} right, zero-shot ${guard.zero_shot.right}.`
    : "";
  const words = [
    el("h2", { text: "The guard froze this stream: answers are zero-shot's" }),
    el("p", { text: `What it learned last makes it worse.${figures} Nothing is learned until you decide.` }),
  ];
  const back = good !== null;
  words.push(
    el("div", { class: "row" }, el("button", {
      type: "button", class: "primary", text: back ? `Roll back to version ${good}` : "Roll back",
      "data-key": "back", "data-testid": "banner-rollback",
      on: { click: (event) => rollBack(back ? good : null, event.currentTarget) },
    })),
    el("p", { class: "hint", text: back
      ? `Version ${good} is the last that passed. What was learned after it is forgotten, and answers are adapted again; the stream learns again once you unfreeze it.`
      : "No version with this guard has passed: the newest snapshot before this one comes back. Reset forgets everything." }),
  );
  return words;
}

function choose(items) {
  chosen = items;
  const counts = new Map();
  for (const { label } of chosen) counts.set(label, (counts.get(label) ?? 0) + 1);
  refill(byId("guard-chosen"), ...[...counts].map(([label, count]) => el("button", {
    type: "button", class: "chip", text: `${label} ${count} ✕`, "aria-label": `Leave out ${label}, ${counted(count, "image")}`,
    "data-key": label, on: { click: () => choose(chosen.filter((item) => item.label !== label)) },
  })));
  byId("guard-put").disabled = chosen.length === 0;
  setText(byId("guard-put"), chosen.length ? `Set the guard (${counted(chosen.length, "image")})` : "Set the guard");
  setHidden(byId("guard-clear"), chosen.length === 0);
}

/** Images of a folder of class folders; those of other names are left out, and named. */
function folder() {
  const files = [...byId("guard-folder-input").files];
  byId("guard-folder-input").value = "";
  const labels = new Map(state.info.classes.map((name) => [plain(name), name]));
  const others = new Set();
  const items = [];
  for (const file of files) {
    const parts = file.webkitRelativePath.split("/");
    const name = parts.length > 1 ? parts.at(-2) : "";
    if (file.name.startsWith(".") || (file.type && !file.type.startsWith("image/"))) continue;
    const label = labels.get(plain(name));
    if (label === undefined) others.add(name);
    else items.push({ file, name: file.name, label });
  }
  choose([...chosen, ...items]);
  setText(byId("guard-error"), others.size
    ? `No class of this stream, left out: ${[...others].slice(0, 8).join(", ")}${others.size > 8 ? ` and ${others.size - 8} more` : ""}.`
    : items.length ? "" : "There is no image in that folder.");
}

const plain = (name) => name.toLowerCase().replace(/[\s_-]+/g, " ").trim();

/** The last examples of each class: a stream that is tried out sees them last. */
async function icons() {
  setText(byId("guard-error"), "");
  byId("guard-icons").disabled = true;
  try {
    const { labels } = await examples();
    const left = new Map();
    const items = [];
    for (let n = labels.length - 1; n >= 0; n -= 1) {
      const label = labels[n];
      if ((left.get(label) ?? 0) >= PER_CLASS) continue;
      left.set(label, (left.get(label) ?? 0) + 1);
      items.push({ file: await exampleFile(n), name: `icon ${n}.png`, label });
    }
    choose(items);
  } catch (error) {
    setText(byId("guard-error"), reason(error));
  } finally {
    byId("guard-icons").disabled = false;
  }
}

async function put() {
  const { name: stream } = state;
  const button = byId("guard-put");
  button.disabled = true;
  setText(byId("guard-said"), "sending the guard images…");
  const bytes = chosen.reduce((sum, item) => sum + item.file.size, 0);
  const body = new FormData();
  for (const { file, name } of chosen) {
    const smaller = bytes > 0.8 * state.server.limits.body_bytes && (await shrink(file, ENOUGH));
    body.append("image", smaller ? smaller.blob : file, name);
  }
  for (const { label } of chosen) body.append("label", label);
  const count = chosen.length;
  if (stream !== state.name) return;
  const set = await act(button, "guard-error", "PUT", "/guard", { body });
  setText(byId("guard-said"), set ? `The guard is set: ${counted(count, "image")}.` : "");
  if (!set) return;
  choose([]);
  byId("guard-set").open = false;
}

async function remove(event) {
  const button = event.currentTarget;
  const yes = await ask({
    title: "Remove the guard?", yes: "Remove", danger: true,
    words: "Nothing will then stop the stream when it is taught rubbish.",
  });
  if (yes && (await act(button, "guard-error", "DELETE", "/guard"))) setText(byId("guard-said"), "The guard is removed.");
}
