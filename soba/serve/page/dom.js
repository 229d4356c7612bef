// Elements, text and numbers. User content only ever becomes text, never markup.

export const byId = (id) => document.getElementById(id);

/** An element: attributes by name, `on` for listeners, `text`, booleans as properties. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Replace what a container holds, and leave the focus on the element with the same data-key. */
export function refill(container, ...children) {
  const active = document.activeElement;
  const key = container.contains(active) ? active.dataset.key : undefined;
  container.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  if (key === undefined) return;
  const again = [...container.querySelectorAll("[data-key]")].find((n) => n.dataset.key === key);
  if (again) again.focus({ preventScroll: true });
}

/** Whether `value` is another than at the last call with this holder; saves needless redrawing. */
export function isNew(holder, value) {
  const text = JSON.stringify(value);
  if (holder.last === text) return false;
  holder.last = text;
  return true;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const percent = (share) =>
  share === null || share === undefined ? "–" : `${Math.round(100 * share)}%`;

/** A probability: one that is not certain is never written as such. */
export const sure = (p) => (p > 0.995 && p < 1 ? ">99%" : p < 0.005 && p > 0 ? "<1%" : percent(p));

export const counted = (n, one, many = `${one}s`) =>
  `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export function clock(seconds) {
  const date = new Date(1000 * seconds);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const today = date.toDateString() === new Date().toDateString();
  return today ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/** A bar of which a share is filled. */
export function bar(share, kind) {
  const fill = el("i", { class: kind });
  fill.style.width = `${100 * Math.max(0, Math.min(1, share || 0))}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, fill);
}

/** Names typed one a line, or with commas between them; each once. */
export function names(text) {
  const parts = text.split(/[\n,]+/).map((part) => part.trim().replace(/\s+/g, " "));
  return [...new Set(parts.filter(Boolean))];
}
