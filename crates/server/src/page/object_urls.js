// Addresses of image files for <img>. They are made when they are first needed: each one costs the browser a message to
// another process, which adds up for thousands of images.

const urls = new Map();

/** The address of a picture {id, blob}. */
export function urlOf({ id, blob }) {
  if (!urls.has(id)) urls.set(id, URL.createObjectURL(blob));
  return urls.get(id);
}

export function revokeAll() {
  for (const url of urls.values()) URL.revokeObjectURL(url);
  urls.clear();
}
