// What happened to a stream, and ways back: freeze, snapshots, history.

import { act, ask } from "./dialogs.js";
import { byId, clock, counted, el, isNew, refill, setHidden, setText } from "./dom.js";
import { on, state } from "./state.js";

const FEW = 8;
const WORDS = {
  learn: (c) => `learned from ${counted(c.samples, "image")}${c.guards ? ", with notes of the guard" : ""}`,
  classes: () => "classes changed",
  guard: () => "guard set, passed or removed",
  freeze: () => "frozen",
  unfreeze: () => "unfrozen",
  rollback: () => "rolled back",
  reset: () => "reset",
  import: () => "imported",
};

let all = false;
const drawn = {};

export function startVersions() {
  on("stream", () => {
    all = false;
    for (const id of ["versions-error", "stream-error"]) setText(byId(id), "");
    draw();
  });
  on("info", draw);
  byId("history-more").addEventListener("click", () => {
    all = true;
    draw();
  });
  byId("freeze").addEventListener("click", () => freezing(byId("freeze")));
  byId("rollback-form").addEventListener("submit", (event) => {
    event.preventDefault();
    rollBack(byId("rollback-version").valueAsNumber, byId("rollback-to"));
  });
}

/** Freeze a stream that learns; unfreeze one that does not. */
export function freezing(button) {
  return act(button, "stream-error", "POST", state.info.frozen ? "/unfreeze" : "/freeze");
}

/** Ask, then roll back to a version; null: where the guard last passed, or the newest snapshot. */
export async function rollBack(version, button) {
  const target = version === null ? "the newest snapshot" : `version ${version}`;
  const yes = await ask({
    title: `Roll back to ${target}?`, yes: "Roll back",
    words: "What was learned after it is forgotten, and the classes of then come back. Its images stay known, so that sending them again teaches nothing. The guard, and whether the stream is frozen, stay as they are.",
  });
  if (yes) await act(button, "versions-error", "POST", "/rollback", { json: version === null ? {} : { version } });
}

function draw() {
  const { info, changes } = state;
  if (!isNew(drawn, [info?.name, info?.version, info?.snapshots, info?.last_good_version, info?.frozen, changes, all])) return;
  setText(byId("freeze"), info?.frozen ? "Unfreeze" : "Freeze");
  byId("freeze").disabled = !info;
  byId("rollback-version").max = info ? info.version : "";
  const at = new Map(changes.map((change) => [change.version, change.at]));
  const snapshots = info?.snapshots ?? [];
  refill(byId("snapshots"), ...(snapshots.length ? snapshots.map((version) => snapshot(version, at)) : [
    el("li", { class: "hint", text: "No snapshot yet; they come as the stream learns." }),
  ]));
  const rows = grouped(changes);
  refill(byId("history"), ...(rows.length ? (all ? rows : rows.slice(0, FEW)).map(entry) : [
    el("li", { class: "hint", text: "Nothing happened yet." }),
  ]));
  setHidden(byId("history-more"), all || rows.length <= FEW);
  setText(byId("history-more"), `Show all ${rows.length}`);
}

function snapshot(version, at) {
  const { info } = state;
  const facts = [at.has(version) ? clock(at.get(version)) : version === 0 ? "the beginning" : "earlier"];
  if (version === info.last_good_version) facts.push("the guard last passed");
  const current = version === info.version;
  return el("li", {},
    el("b", { text: `version ${version}` }),
    el("span", { class: "soft", text: facts.join(", ") }),
    current ? el("span", { class: "soft end", text: "now" }) : el("button", {
      type: "button", class: "end", text: "Roll back", "aria-label": `Roll back to version ${version}`,
      "data-key": `back ${version}`, "data-testid": "rollback", "data-version": String(version),
      on: { click: (event) => rollBack(version, event.currentTarget) },
    }));
}

/** Newest first, with learning in one row, and in it what the guard noted meanwhile. */
function grouped(changes) {
  const rows = [];
  changes.forEach((change, k) => {
    const last = rows.at(-1);
    const meanwhile = change.kind === "guard" && changes[k + 1]?.kind === "learn";
    if (last?.kind === "learn" && (change.kind === "learn" || meanwhile)) {
      last.first = change.version;
      last.samples += change.samples;
      last.guards += meanwhile ? 1 : 0;
    } else rows.push({ ...change, first: change.version, guards: 0 });
  });
  return rows;
}

function entry(row) {
  const versions = row.first === row.version ? `version ${row.version}` : `${row.first} to ${row.version}`;
  const words = (WORDS[row.kind] ?? (() => row.kind))(row);
  return el("li", { "data-testid": "change", "data-kind": row.kind },
    el("span", { text: words }),
    el("span", { class: "soft", text: versions }),
    el("time", { class: "soft end", text: clock(row.at), datetime: new Date(1000 * row.at).toISOString() }));
}
