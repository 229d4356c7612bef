// What is done to a stream as a whole: classes, export, import, reset, delete.

import { call, reason, streamPath } from "./api.js";
import { act, ask } from "./dialogs.js";
import { byId, counted, el, names, setText } from "./dom.js";
import { loadStreams, on, state } from "./state.js";

export function startManage() {
  on("stream", () => {
    for (const id of ["manage-said", "manage-error"]) setText(byId(id), "");
  });
  const click = (id, listener) => byId(id).addEventListener("click", listener);
  click("change-classes", () => {
    setText(byId("classes-error"), "");
    byId("new-classes").value = state.info.classes.join("\n");
    byId("classes-dialog").showModal();
  });
  click("classes-cancel", () => byId("classes-dialog").close());
  byId("classes-form").addEventListener("submit", changeClasses);
  click("export", download);
  click("import", () => byId("import-file").click());
  byId("import-file").addEventListener("change", upload);
  click("reset", reset);
  click("delete", remove);
}

async function changeClasses(event) {
  event.preventDefault();
  const classes = names(byId("new-classes").value);
  const button = event.submitter;
  if (await act(button, "classes-error", "PUT", "/classes", { json: { classes } })) {
    byId("classes-dialog").close();
    setText(byId("manage-said"), `It has ${counted(classes.length, "class", "classes")} now.`);
    loadStreams();
  }
}

async function download() {
  const { name } = state;
  setText(byId("manage-error"), "");
  setText(byId("manage-said"), "");
  try {
    const blob = await (await call("GET", streamPath(name, "/export"))).blob();
    const url = URL.createObjectURL(blob);
    const link = el("a", { href: url, download: `${name}.soba` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    setText(byId("manage-said"), `Exported: soba.load("${name}.soba") reads it.`);
  } catch (error) {
    setText(byId("manage-error"), reason(error));
  }
}

async function upload() {
  const [file] = byId("import-file").files;
  byId("import-file").value = "";
  if (!file) return;
  const yes = await ask({
    title: `Import ${file.name}?`, yes: "Import",
    words: "What the file holds takes the place of what this stream has learned. You can roll back to a snapshot.",
  });
  if (!yes) return;
  const headers = { "Content-Type": "application/octet-stream" };
  if (await act(byId("import"), "manage-error", "POST", "/import", { body: file, headers })) {
    setText(byId("manage-said"), `Imported ${file.name}.`);
  }
}

async function reset() {
  const yes = await ask({
    title: "Reset this stream?", yes: "Reset", danger: true,
    words: "It forgets all it has learned and begins anew, with the same classes. You can roll back to a snapshot.",
  });
  if (yes && (await act(byId("reset"), "manage-error", "POST", "/reset"))) {
    setText(byId("manage-said"), "It begins anew.");
  }
}

async function remove() {
  const { name } = state;
  const yes = await ask({
    title: `Delete ${name}?`, yes: "Delete", danger: true,
    words: "All it has learned, its history and its guard are gone for good. An export can be imported into a new stream.",
  });
  if (!yes) return;
  try {
    await call("DELETE", streamPath(name));
    sessionStorage.removeItem(`soba-icons ${name}`);
    location.hash = "";
  } catch (error) {
    setText(byId("manage-error"), reason(error));
  }
}
