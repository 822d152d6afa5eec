// Small versions of large images: decoding 12 megapixels is too slow while the page scrolls.

import { urlOf } from "./object_urls.js";

/** The width of a thumbnail in pixels. */
const WIDTH = 320;
/** Files below this size are shown as they are. */
const SMALL_BYTES = 150_000;
/** How many thumbnails are made at the same time. */
const AT_ONCE = 2;

/** Image id → URL of its thumbnail. */
const made = new Map();
/** The requests that are not served yet, as {image, picture}, the latest last. */
const waiting = [];
/** How many thumbnails are being made. */
let running = 0;

/** Frees all thumbnails. */
export function clear() {
  for (const url of made.values()) URL.revokeObjectURL(url);
  made.clear();
  waiting.length = 0;
}

/** Shows a picture in an <img>, as a thumbnail if its file is large. */
export function show(image, picture) {
  if (picture.blob.size <= SMALL_BYTES) image.src = urlOf(picture);
  else if (made.has(picture.id)) image.src = made.get(picture.id);
  else {
    waiting.push({ image, picture });
    // The caller adds the <img> to the document after this call; `work` skips images that are not in it.
    setTimeout(work);
  }
}

/** Makes thumbnails, the latest requests first: they are for the visible part of the page. */
async function work() {
  if (running >= AT_ONCE || waiting.length === 0) return;
  running += 1;
  const { image, picture } = waiting.pop();
  if (image.isConnected) {
    if (!made.has(picture.id)) made.set(picture.id, await thumbnail(picture).catch(() => urlOf(picture)));
    image.src = made.get(picture.id);
  }
  running -= 1;
  work();
}

async function thumbnail({ blob }) {
  const bitmap = await createImageBitmap(blob, { resizeWidth: WIDTH, resizeQuality: "medium" });
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  return new Promise((done) => canvas.toBlob((small) => done(URL.createObjectURL(small)), "image/jpeg", 0.85));
}
