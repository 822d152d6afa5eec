// Undo and redo. An entry is {words, before, after}: a description of the change, and the two snapshots for `restore`.

/** The most changes that can be undone; older ones are forgotten. */
const MOST_ENTRIES = 500;
const done = [];
const undone = [];

/** Adds a new change. What was undone before can no longer be redone. */
export function record(entry) {
  done.push(entry);
  undone.length = 0;
  if (done.length > MOST_ENTRIES) done.shift();
}

/** What Undo and Redo would do, in words; null if there is nothing to do. */
export const nextUndo = () => done.at(-1)?.words ?? null;
export const nextRedo = () => undone.at(-1)?.words ?? null;

/** Undoes the last change, or redoes the last undone one. Returns the entry, or null. */
export const undo = (restore) => step(done, undone, "before", restore);
export const redo = (restore) => step(undone, done, "after", restore);

function step(from, to, side, restore) {
  const entry = from.pop();
  if (!entry) return null;
  to.push(entry);
  restore(entry[side]);
  return entry;
}

export function clear() {
  done.length = undone.length = 0;
}
