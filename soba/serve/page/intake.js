// Where images come from: drop, paste, file chooser, camera.

import { startCamera } from "./camera.js";
import { byId, setText } from "./dom.js";
import { send } from "./sending.js";
import { state } from "./state.js";

export function startIntake() {
  byId("choose").addEventListener("click", () => byId("files").click());
  startCamera(sendFiles);
  for (const input of ["files", "camera"]) {
    byId(input).addEventListener("change", () => {
      sendFiles([...byId(input).files]);
      byId(input).value = "";
    });
  }
  const drop = byId("drop");
  let inside = 0;
  const over = (change) => {
    inside = Math.max(0, inside + change);
    drop.classList.toggle("over", inside > 0);
  };
  // The whole page takes what is dropped: a browser would otherwise show the file instead of it.
  addEventListener("dragenter", () => over(1));
  addEventListener("dragleave", () => over(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", async (event) => {
    event.preventDefault();
    over(-inside);
    sendFiles(await dropped(event.dataTransfer));
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!state.name || !files.length) return;
    event.preventDefault();
    sendFiles(files);
  });
}

function sendFiles(files) {
  if (!state.name || !state.server) return;
  const images = files.filter((file) => !file.type || file.type.startsWith("image/"));
  if (!images.length) {
    setText(byId("intake-error"), files.length ? "There is no image among these files." : "");
    return;
  }
  const items = images.map((file, k) => ({ file, name: file.name || `pasted ${k + 1}` }));
  send(items, { learn: !byId("only-look").checked });
}

/** The files that were dropped, and those in folders that were. */
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  const files = [];
  const walk = async (entry) => {
    if (entry.isFile) files.push(await new Promise((yes, no) => entry.file(yes, no)));
    else for (const child of await children(entry)) await walk(child);
  };
  for (const entry of entries) await walk(entry);
  return files;
}

async function children(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) { // a reader gives some at a time, and none at the end
    const part = await new Promise((yes, no) => reader.readEntries(yes, no));
    if (!part.length) return all;
    all.push(...part);
  }
}
