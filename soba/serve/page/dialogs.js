// Questions, asked in the page; and actions whose outcome is said where they were asked for.

import { call, reason, streamPath } from "./api.js";
import { byId, setText } from "./dom.js";
import { on, state, take } from "./state.js";

/** No question outlives the stream that it was asked of. */
export function startDialogs() {
  on("stream", () => document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close("")));
}

/** Whether the answer is yes. Escape and Cancel are no. */
export function ask({ title, words, yes, danger = false }) {
  const dialog = byId("ask");
  setText(byId("ask-title"), title);
  setText(byId("ask-words"), words);
  setText(byId("ask-yes"), yes);
  byId("ask-yes").className = danger ? "danger" : "primary";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** A call that changes the stream that is shown, and answers with its state; errors are said in `error`. */
export async function act(button, error, method, rest, options = {}) {
  const where = byId(error);
  setText(where, "");
  if (button) button.disabled = true;
  try {
    const waiting = (seconds, why) => setText(where, `${why} Tries again in ${Math.ceil(seconds)} s.`);
    const response = await call(method, streamPath(state.name, rest), { waiting, ...options });
    setText(where, "");
    await take(await response.json());
    return true;
  } catch (problem) {
    setText(where, reason(problem));
    return false;
  } finally {
    if (button) button.disabled = false;
    const lost = document.activeElement === document.body; // as it was disabled
    if (lost && button?.isConnected) button.focus({ preventScroll: true });
  }
}
