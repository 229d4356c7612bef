// Calls to the server: the key, errors as the server words them, and waiting where it is busy.

const KEY = "soba-key";
const TRIES = 6;

export class Problem extends Error {
  constructor(status, detail, body = {}) {
    super(detail);
    this.status = status; // 0: no answer came
    this.body = body;
  }
}

let askForKey = null; // (refused) -> promise: a key was given
let asking = null; // all calls that were refused wait for the same key

export const whenKeyIsNeeded = (ask) => { askForKey = ask; };
export const setKey = (key) => sessionStorage.setItem(KEY, key);

/**
 * One call. Where the server is busy (429), or cannot (503), it is made again after Retry-After;
 * `waiting(seconds, why)` hears of it. `patient` calls, which may be made twice, outlast a server
 * that is away, too; `once` ones are made once, whatever the answer. `signal` ends a call at once,
 * `stop` only the waiting: what was sent is answered.
 */
export async function call(method, path, options = {}) {
  const { json, signal, stop, waiting, patient = false, once = false } = options;
  for (let attempt = 1; ; attempt += 1) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    if (json !== undefined) headers["Content-Type"] = "application/json";
    const body = json === undefined ? options.body : JSON.stringify(json);
    let problem, seconds;
    try {
      const response = await fetch(path, { method, headers, body, signal });
      if (response.ok) return response;
      problem = await problemOf(response);
      if (response.status === 401 && askForKey) {
        await keyAfter(key);
        continue;
      }
      seconds = retryAfter(response, attempt);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      problem = new Problem(0, "The server does not answer.");
      seconds = patient ? Math.min(8, 2 ** (attempt - 1)) : null;
    }
    if (once || seconds === null || attempt >= TRIES) throw problem;
    if (waiting) waiting(seconds, problem.message);
    await pause(seconds, stop ?? signal);
  }
}

export async function getJson(path, options = {}) {
  return (await call("GET", path, options)).json();
}

/** What to tell people of an error, whatever it is. */
export const reason = (error) => (error instanceof Problem ? error.message : String(error));

export const streamPath = (name, rest = "") => `/v1/streams/${encodeURIComponent(name)}${rest}`;

function retryAfter(response, attempt) {
  if (response.status !== 429 && response.status !== 503) return null;
  const seconds = Number.parseFloat(response.headers.get("Retry-After"));
  return Number.isFinite(seconds) ? Math.max(0.1, Math.min(60, seconds)) : attempt;
}

async function problemOf(response) {
  try {
    const body = await response.json();
    return new Problem(response.status, wording(body, response), body);
  } catch {
    return new Problem(response.status, `${response.status} ${response.statusText}`.trim());
  }
}

function wording(body, response) {
  const said = typeof body.detail === "string" && body.detail ? body.detail : body.title;
  return said ? sentence(said) : `${response.status} ${response.statusText}`.trim();
}

const sentence = (text) =>
  text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

async function keyAfter(refused) {
  const key = sessionStorage.getItem(KEY);
  if (key !== refused) return; // another call was given one meanwhile
  asking ??= askForKey(refused !== null).finally(() => { asking = null; });
  await asking;
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
