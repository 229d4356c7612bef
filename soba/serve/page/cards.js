// One card an image: both answers with bars, what changed, and a click to say which is right.

import { call, reason, streamPath } from "./api.js";
import { bar, byId, el, refill, sure } from "./dom.js";
import { emit, on, refresh, state } from "./state.js";

const KEPT = 400; // cards of a stream
const FILTERS = [
  ["all", "All", () => true],
  ["changed", "Changed", (card) => card.answer?.changed],
  ["unsure", "Unsure", (card) => card.answer?.unsure],
  ["wrong", "Wrong", (card) => truth(card) && card.answer && card.answer.label !== truth(card)],
];

const cards = new Map(); // stream -> its cards, newest first
let filter = "all";
let shown = 0;

const truth = (card) => card.told ?? card.known;
const page = () => (matchMedia("(max-width: 40rem)").matches ? 5 : 12);
const mine = () => cards.get(state.name) ?? [];

export function startCards() {
  shown = page();
  on("stream", () => {
    filter = "all";
    shown = page();
    draw();
  });
  byId("more").addEventListener("click", () => {
    const first = byId("cards").children.length;
    shown += page() * 2;
    draw();
    byId("cards").children[first]?.querySelector("button, select")?.focus();
  });
}

/** Cards of images that were just sent; `answer` or `fail` ends their waiting. */
export function begin(stream, items) {
  const added = items.map((item) => ({
    stream, name: item.name, known: item.known ?? null, url: item.url ?? null,
    answer: null, error: null, told: null, node: null,
  }));
  const all = [...added.toReversed(), ...(cards.get(stream) ?? [])];
  for (const old of all.slice(KEPT)) if (old.url) URL.revokeObjectURL(old.url);
  cards.set(stream, all.slice(0, KEPT));
  if (stream === state.name) draw();
  return added;
}

export function answer(card, answered, by) {
  card.answer = answered.error ? null : answered;
  card.error = answered.error;
  card.by = by;
  if (card.node) fill(card);
}

export function fail(card, why) {
  card.error = why;
  if (card.node) fill(card);
}

/** Once a batch is answered: counts of the filters, and which cards they let through. */
export function draw() {
  const all = mine();
  const passes = FILTERS.find(([key]) => key === filter)[2];
  const chosen = all.filter(passes);
  byId("results-empty").hidden = all.length > 0;
  const buttons = FILTERS.map(([key, title, test]) => {
    const count = all.filter(test).length;
    return el("button", {
      type: "button", text: `${title} ${count}`, "aria-pressed": String(key === filter),
      "data-key": key, "data-testid": `filter-${key}`,
      on: { click: () => { filter = key; shown = page(); draw(); } },
    });
  });
  refill(byId("filters"), ...(all.length ? buttons : []));
  const nodes = chosen.slice(0, shown).map((card) => card.node ?? fill(card));
  place(byId("cards"), nodes);
  for (const card of all) if (!nodes.includes(card.node)) card.node = null;
  byId("more").hidden = chosen.length <= shown;
  byId("more").textContent = `Show more (${chosen.length - Math.min(shown, chosen.length)} left)`;
}

/** The list's children become `nodes`; those that stay are not touched, nor is the focus. */
function place(list, nodes) {
  for (const child of [...list.children]) if (!nodes.includes(child)) child.remove();
  nodes.forEach((node, k) => {
    if (list.children[k] !== node) list.insertBefore(node, list.children[k] ?? null);
  });
}

function fill(card) {
  card.node ??= el("li", { "data-testid": "card" });
  const { node, answer: a } = card;
  node.className = ["card", a?.changed && "changed", a?.unsure && "unsure", card.error && "broken"]
    .filter(Boolean).join(" ");
  if (a) Object.assign(node.dataset, { id: a.id, label: a.label, zeroShot: a.zero_shot.label });
  refill(node, picture(card), el("div", { class: "body" }, ...(a ? said(card) : waiting(card))));
  return node;
}

function picture(card) {
  if (!card.url) return el("span", { class: "thumb none", "aria-hidden": "true", text: "?" });
  return el("img", { class: "thumb", src: card.url, alt: card.name });
}

function waiting(card) {
  const name = el("p", { class: "file", text: card.name });
  if (!card.error) return [name, el("p", { class: "soft", text: "asking…" })];
  return [name, el("p", { class: "error", text: `Not answered: ${card.error}` })];
}

function said(card) {
  const { answer: a } = card;
  const by = card.by === "zero-shot" ? "zero-shot" : "adapted";
  const verdict = el("p", { class: "verdict" }, el("b", { class: `${by} ink`, text: a.label }), mark(card, a.label));
  if (a.changed) {
    verdict.append(
      el("span", { class: "soft", text: " zero-shot: " }),
      el("span", { class: "zero-shot ink", text: a.zero_shot.label }),
      mark(card, a.zero_shot.label) ?? "",
    );
  }
  const badges = el("span", { class: "badges" });
  if (a.changed) badges.append(el("span", { class: "badge blue", text: "changed", "data-testid": "badge-changed" }));
  if (a.unsure) badges.append(el("span", { class: "badge warn", text: "unsure", "data-testid": "badge-unsure" }));
  if (card.known) {
    badges.append(el("span", { class: "badge", text: `known: ${card.known}`, "data-testid": "badge-known" }));
  }
  return [badges.children.length ? badges : null, verdict, bars(card), feedback(card)].filter(Boolean);
}

/** Right or wrong, where that is known. */
function mark(card, label) {
  const right = truth(card);
  if (!right) return null;
  return right === label
    ? el("span", { class: "good", text: " ✓", title: "right", "aria-label": "right" })
    : el("span", { class: "bad", text: " ✗", title: "wrong", "aria-label": "wrong" });
}

function bars(card) {
  const { top, zero_shot: zero } = card.answer;
  const rows = top.map(({ label, probability }) => ({ label, adapted: probability }));
  const same = rows.find((row) => row.label === zero.label);
  if (same) same.zero = zero.probability;
  else rows.push({ label: zero.label, zero: zero.probability });
  return el("dl", { class: "bars" }, ...rows.flatMap(({ label, adapted, zero: plain }) => [
    el("dt", { text: label, title: label }),
    el("dd", {},
      el("span", { class: "pair" },
        adapted === undefined ? null : bar(adapted, "adapted"),
        plain === undefined ? null : bar(plain, "zero-shot")),
      el("span", { class: "figures" },
        adapted === undefined ? null : el("span", { class: "adapted ink", text: sure(adapted), title: "adapted" }),
        plain === undefined ? null : el("span", { class: "zero-shot ink", text: sure(plain), title: "zero-shot" }))),
  ]));
}

function feedback(card) {
  const { answer: a } = card;
  const button = (label, kind) => el("button", {
    type: "button", class: `tell ${kind}`, text: label, "aria-pressed": String(card.told === label),
    "aria-label": `${label} is right`, "data-key": `tell ${label}`, "data-testid": `tell-${kind}`,
    on: { click: () => tell(card, label) },
  });
  const other = el("select", { "aria-label": "Another class is right", "data-key": "other", "data-testid": "tell-other" },
    el("option", { value: "", text: "another…" }));
  const options = () => {
    if (other.options.length > 1) return;
    other.append(...state.info.classes.map((name) => el("option", { value: name, text: name })));
  };
  for (const event of ["focus", "pointerdown"]) other.addEventListener(event, options);
  other.addEventListener("change", () => { if (other.value) tell(card, other.value); });
  const elsewhere = card.told && card.told !== a.label && card.told !== a.zero_shot.label;
  if (elsewhere) {
    other.append(el("option", { value: card.told, text: card.told, selected: true }));
    other.classList.add("told");
  }
  return el("div", { class: "feedback", role: "group", "aria-label": "Which is right?" },
    el("span", { class: "soft", text: card.told ? "Right:" : "Right?" }),
    button(a.label, card.by === "zero-shot" ? "zero-shot" : "adapted"),
    a.zero_shot.label === a.label ? null : button(a.zero_shot.label, "zero-shot"),
    other,
    el("span", { class: "error", role: "alert", text: card.trouble ?? "" }));
}

async function tell(card, label) {
  const before = card.told;
  Object.assign(card, { told: label, trouble: null });
  fill(card);
  const { id, label: answered, zero_shot: zero } = card.answer;
  try {
    await call("POST", streamPath(card.stream, "/feedback"), {
      json: { id, label, answered, zero_shot: zero.label },
      patient: true,
      waiting: (seconds, why) => { card.trouble = `${why} Again in ${Math.ceil(seconds)} s.`; fill(card); },
    });
    card.trouble = null;
    emit("said", `Noted: ${label} is right.`);
    refresh();
  } catch (error) {
    Object.assign(card, { told: before, trouble: reason(error) });
  }
  fill(card);
  if (card.stream === state.name) draw();
}
