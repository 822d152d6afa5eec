// The viewer: shows one image enlarged; the arrow keys show the others of the page.

import * as collection from "./collection.js";
import * as dialog from "./item_dialog.js";

/** The id of the shown image; null while the viewer is closed. */
let current = null;
/** The images for the arrow keys, in the order of the page when the viewer was opened. */
let order = [];
/** What `open` was given as `focus`. */
let focusAfter = null;

/** Opens the viewer. When it is closed, `focus` gets the id of the image that was shown last. */
export function open(id, ids, focus) {
  [current, order, focusAfter] = [id, ids, focus];
  dialog.open(controller);
}

/** The images in `order` that are still on the page. */
const present = () => order.filter((id) => collection.current().pictures.has(id));

/** Shows the image `by` positions further, if there is one. */
function step(by) {
  const ids = present();
  const index = ids.indexOf(current) + by;
  if (!ids[index]) return;
  current = ids[index];
  dialog.update();
  dialog.focusDefault();
}

/** Makes a change. The image stays; if it was removed, the next one is shown. */
function decide(work) {
  const ids = present();
  const index = ids.indexOf(current);
  work(current);
  if (!collection.current().pictures.has(current)) current = ids[index + 1] ?? ids[index - 1] ?? null;
  if (current === null) dialog.close();
  dialog.update();
  dialog.focusDefault();
}

const controller = {
  title: "Image",
  id: () => current,
  verdict: () => (collection.current().pictures.get(current)?.quarantined ? null : collection.verdictOf(current)),
  progress: () => { const ids = present(); return `${ids.indexOf(current) + 1} of ${ids.length}`; },
  back: { text: "Previous", key: "←", run: () => step(-1), enabled: () => present().indexOf(current) > 0 },
  forward: { text: "Next", key: "→", run: () => step(1), enabled: () => present().indexOf(current) < present().length - 1 },
  decide,
  // The shown image was removed by Undo or Redo.
  end: () => dialog.close(),
  closed: () => { const last = current; current = null; focusAfter(last); },
};
