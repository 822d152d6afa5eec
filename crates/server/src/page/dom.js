// Helpers for making and finding elements.

export const byId = (id) => document.getElementById(id);

/** Makes an element. Properties whose names contain a hyphen (aria-label, data-id) are set as attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** A button with a text; more properties as in `element`. */
export const button = (textContent, onclick, properties = {}) => element("button", { type: "button", textContent, onclick, ...properties });

/** Makes `wanted` the children of an element. Children that stay are not moved if possible, so they keep the focus. */
export function setChildren(parent, wanted) {
  const staying = new Set(wanted);
  for (const child of [...parent.children]) if (!staying.has(child)) child.remove();
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
}

/** Sets a text if it differs: a live region is read out again when its text is replaced by the same text. */
export function setText(holder, text) {
  if (holder.textContent !== text) holder.textContent = text;
}

/** The parts of a file name as children of an element, so that a long name can break after a separator (`_`, `-`, `/` or a
 * space) but not before its extension. */
export const breakable = (name) => name.split(/(?<=[_\-/ ])/).flatMap((part, index) => (index === 0 ? [part] : [element("wbr"), part]));
