// Embeds new images on the server, in small batches, so that progress is visible.

import * as collection from "./collection.js";
import * as server from "./server.js";

/** The most images in a request, and the most bytes of their files, unless a single file is larger. */
const BATCH_FILES = 8;
const BATCH_BYTES = 16 << 20;

/** The images that are not embedded yet. */
let queue = [];
let running = false;
/** The promise that the queue is empty. */
let finished = Promise.resolve();
/** The promise that the collection is embedded again after a change of the network. */
let renewed = Promise.resolve();
/** Called with the name of the network when the server uses another one than before. */
let reportEmbedder = () => {};

/** Sets the function that is called when the server, after a restart, uses another network than before. */
export const onEmbedderChange = (listener) => { reportEmbedder = listener; };

/** Embeds images of the collection, including those that Undo can restore. Resolves when no image waits any more. */
export function embedImages(pictures) {
  const state = collection.current();
  const waiting = new Set([...queue, ...pictures]);
  if (running) state.total += waiting.size - queue.length;
  else state.total = waiting.size;
  queue = [...waiting];
  if (!running) finished = embedQueue();
  return finished;
}

async function embedQueue() {
  const state = collection.current();
  running = true;
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
    const { embedder, pictures } = await server.embed(batch);
    if (embedder !== collection.current().embedder) embedAllAgain(embedder, batch);
    pictures.forEach(({ row, image, error }, index) => Object.assign(batch[index], { row: row ?? null, image: image ?? null, problem: error ?? null }));
  } catch (error) {
    if (batch.length > 1 && error.status === 413) {
      for (const picture of batch) await embedBatch([picture]);
      return;
    }
    // A row of another network, if there is one, is of no use.
    batch.forEach((picture) => Object.assign(picture, { row: null, image: null, problem: error.message }));
  }
}

/** Embeds the collection again with another network. The images of `batch` have been embedded with it. */
function embedAllAgain(embedder, batch) {
  const outdated = collection.changeEmbedder(embedder).filter((picture) => !batch.includes(picture));
  reportEmbedder(embedder);
  renewed = embedImages(outdated);
}

/** Embeds images that do not belong to the collection: {name, blob}s, which get a row or a problem, and `embedder`, the
 * name of the network. Those that have been embedded with the network of the collection are left out. */
export async function embedOthers(pictures, progress) {
  for (;;) {
    await renewed;
    const { embedder } = collection.current();
    const waiting = pictures.filter((picture) => picture.embedder !== embedder);
    if (waiting.length === 0) return;
    progress(pictures.length - waiting.length);
    const batch = nextBatch(waiting);
    await embedBatch(batch);
    batch.forEach((picture) => { picture.embedder = collection.current().embedder; });
  }
}

/** Embeds the images again that could not be read, for example because the server could not be reached. */
export function embedAgain() {
  const failed = collection.pictures().filter((picture) => picture.problem);
  failed.forEach((picture) => { picture.problem = null; });
  embedImages(failed);
}
