// The first page: what this is, a new stream, those that there are; and the switch in the header.

import { call, reason } from "./api.js";
import { byId, counted, el, isNew, names, refill, setHidden, setText } from "./dom.js";
import { freeName } from "./examples.js";
import { loadStreams, on, state } from "./state.js";

let named = false; // the name was typed, so none is suggested any more
const drawn = {};

export function startStreams() {
  for (const event of ["streams", "stream", "info"]) on(event, draw);
  on("server", () => {
    const { encoder, version } = state.server;
    setText(byId("server-facts"), `encoder ${encoder}, soba ${version}`);
    if (encoder !== "tiny") return;
    setText(byId("classes-count"), hint([]));
    byId("classes").placeholder = "bell, camera, heart";
  });
  byId("classes").addEventListener("input", () => {
    const classes = names(byId("classes").value);
    setText(byId("classes-count"), hint(classes));
    if (!named) byId("name").value = classes.length ? freeName(suggested(classes)) : "";
  });
  byId("name").addEventListener("input", () => { named = byId("name").value !== ""; });
  byId("create-form").addEventListener("submit", create);
  byId("stream-select").addEventListener("change", () => {
    location.hash = `#/${byId("stream-select").value}`;
  });
}

function hint(classes) {
  if (classes.length) return counted(classes.length, "class", "classes");
  const how = "With commas between them, or one a line.";
  return state.server?.encoder === "tiny" ? `${how} This server's tiny encoder knows icons only.` : how;
}

/** A name made of the first classes, of the letters that names may have. */
function suggested(classes) {
  const plain = classes.slice(0, 3).map((name) => name.normalize("NFKD").replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, ""));
  const name = plain.filter(Boolean).join("-").slice(0, 40).replace(/-+$/, "");
  return name || "stream";
}

async function create(event) {
  event.preventDefault();
  const classes = names(byId("classes").value);
  const templates = byId("templates").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const name = byId("name").value.trim();
  setText(byId("create-error"), "");
  if (classes.length < 2) {
    setText(byId("create-error"), "Type at least two classes.");
    byId("classes").focus();
    return;
  }
  byId("create").disabled = true;
  try {
    const json = { name: name || freeName(suggested(classes)), classes };
    if (templates.length) json.templates = templates;
    await call("POST", "/v1/streams", { json });
    byId("create-form").reset();
    named = false;
    setText(byId("classes-count"), hint([]));
    location.hash = `#/${json.name}`;
    await loadStreams();
  } catch (error) {
    setText(byId("create-error"), reason(error));
  } finally {
    byId("create").disabled = false;
  }
}

function draw() {
  const { streams, name, info } = state;
  if (!isNew(drawn, [streams, name, info && [info.version, info.classes.length]])) return;
  setHidden(byId("streams-panel"), streams.length === 0);
  refill(byId("streams"), ...streams.map((stream) => el("li", {},
    el("a", { href: `#/${stream.name}`, "data-key": stream.name, "data-testid": "stream-link" },
      el("b", { text: stream.name }),
      el("span", { class: "soft", text: `${counted(stream.classes, "class", "classes")}, version ${stream.version}` })))));
  setHidden(byId("stream-switch"), name === null);
  setHidden(byId("new-stream"), name === null);
  const listed = streams.map((stream) => stream.name);
  if (name !== null && !listed.includes(name)) listed.push(name);
  refill(byId("stream-select"), ...listed.map((each) => el("option", { value: each, text: each })));
  if (name !== null) byId("stream-select").value = name;
}
