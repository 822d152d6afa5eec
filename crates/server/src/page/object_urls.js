// URLs of the pictures of the collection for <img>, made when they are first needed: each costs the browser a message to
// another process, which adds up for thousands of images.

/** Picture id → URL of its file. */
const urls = new Map();

/** The URL of a picture {id, blob}. */
export function urlOf({ id, blob }) {
  if (!urls.has(id)) urls.set(id, URL.createObjectURL(blob));
  return urls.get(id);
}

/** Frees the URLs of all pictures. Thumbnails have URLs of their own. */
export function revokeAll() {
  for (const url of urls.values()) URL.revokeObjectURL(url);
  urls.clear();
}
