// Embeds new images on the server, in small batches, so that progress is visible.

import * as collection from "./collection.js";
import * as server from "./server.js";

/** The most images in a request, and the most bytes of their files, unless a single file is larger. */
const BATCH_FILES = 8;
const BATCH_BYTES = 16 << 20;

/** The images that are not embedded yet. */
let queue = [];
let running = false;

/** Embeds images of the collection, including those that Undo can restore. */
export async function embedImages(pictures) {
  queue.push(...pictures);
  const state = collection.current();
  if (running) {
    state.total += pictures.length;
    return;
  }
  running = true;
  state.total = queue.length;
  while (queue.length > 0) {
    state.waiting = queue.length;
    collection.notify();
    const batch = nextBatch(queue);
    await embedBatch(batch);
    collection.saveEmbedded(batch);
    queue = queue.filter(({ id }) => collection.has(id));
  }
  running = false;
  state.waiting = 0;
  collection.edited();
}

/** Takes the next batch from a queue of {blob}. */
function nextBatch(waiting) {
  const batch = [waiting.shift()];
  let bytes = batch[0].blob.size;
  while (waiting.length > 0 && batch.length < BATCH_FILES && bytes + waiting[0].blob.size <= BATCH_BYTES) {
    bytes += waiting[0].blob.size;
    batch.push(waiting.shift());
  }
  return batch;
}

/** Sets row and image, or problem, of {name, blob}s; one at a time if the server refuses the batch as too large. */
async function embedBatch(batch) {
  try {
    const { pictures } = await server.embed(batch);
    pictures.forEach(({ row, image, error }, index) => Object.assign(batch[index], { row: row ?? null, image: image ?? null, problem: error ?? null }));
  } catch (error) {
    if (batch.length > 1 && error.status === 413) {
      for (const picture of batch) await embedBatch([picture]);
      return;
    }
    batch.forEach((picture) => { picture.problem = error.message; });
  }
}

/** Embeds images that do not belong to the collection: {name, blob}s, which get a row or a problem. */
export async function embedOthers(pictures, progress) {
  const waiting = [...pictures];
  while (waiting.length > 0) {
    progress(pictures.length - waiting.length);
    await embedBatch(nextBatch(waiting));
  }
}

/** Embeds the images again that could not be read, for example because the server could not be reached. */
export function embedAgain() {
  const failed = collection.pictures().filter((picture) => picture.problem);
  failed.forEach((picture) => { picture.problem = null; });
  embedImages(failed);
}
