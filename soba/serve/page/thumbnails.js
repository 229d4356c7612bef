// Small pictures of what went through this browser, in IndexedDB by `sample`: the server keeps none.

const MOST = 4000;
const SIDE = 144;
const CHECK_EVERY = 64; // how many are added between two looks at how many there are

let opened = null;
let added = 0;

/** A picture's thumbnail and number of pixels; null where the browser cannot read it. */
export async function shrink(file, side = SIDE) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return null;
  }
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // behind what is transparent, as the encoder sees it
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const pixels = bitmap.width * bitmap.height;
  bitmap.close();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.85));
  return blob && { blob, pixels };
}

/** Keep a thumbnail; the oldest go when there are too many. Storage may be denied: then none is. */
export async function keep(sample, blob) {
  try {
    const base = await database();
    const store = base.transaction("thumbnails", "readwrite").objectStore("thumbnails");
    await done(store.put({ sample, blob, at: Date.now() }));
    added += 1;
    if (added % CHECK_EVERY === 1) await forget(base);
  } catch {
    opened = null;
  }
}

/** sample -> blob, of those that are known here. */
export async function find(samples) {
  const found = new Map();
  try {
    const store = (await database()).transaction("thumbnails").objectStore("thumbnails");
    const rows = await Promise.all(samples.map((sample) => done(store.get(sample))));
    for (const row of rows) if (row) found.set(row.sample, row.blob);
  } catch {
    opened = null;
  }
  return found;
}

async function forget(base) {
  const store = base.transaction("thumbnails", "readwrite").objectStore("thumbnails");
  const excess = (await done(store.count())) - MOST;
  if (excess <= 0) return;
  let left = excess;
  const cursor = store.index("at").openCursor();
  cursor.onsuccess = () => {
    if (!cursor.result || left-- <= 0) return;
    cursor.result.delete();
    cursor.result.continue();
  };
}

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("soba", 1);
    request.onupgradeneeded = () => {
      const store = request.result.createObjectStore("thumbnails", { keyPath: "sample" });
      store.createIndex("at", "at");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
  return opened;
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
