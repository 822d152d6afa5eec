// Client of the HTTP API. The only part of the page that it touches is the dialog for the token.

/** The key of the token in the storage of the browser tab. */
const TOKEN = "trueshot-token";
/** Rows per request for predictions. */
const ROWS_PER_REQUEST = 1000;

/** A refused request, with the server's error and hint as its message. */
class Refusal extends Error {
  constructor(status, body) {
    super(body?.hint ? `${body.error} (${body.hint})` : (body?.error ?? `the server answered ${status}`));
    this.status = status;
  }
}

/** Sends a request and returns its response, as `fetch` does. Asks for the token if the server wants one, and repeats the
 * request up to `retries` times while the queue of the server is full. Throws an error if the server cannot be reached or
 * refuses. */
async function ask(path, options = {}, retries = 5) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("authorization", `Bearer ${token}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached. Check that `trueshot serve` is still running.");
  }
  if (response.status === 401) {
    // If the token has changed since the request was sent, the new one may be right.
    if (token === sessionStorage.getItem(TOKEN)) await newToken(token !== null);
    return ask(path, options, retries);
  }
  if (response.status === 429 && retries > 0) {
    await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("retry-after") ?? 1)));
    return ask(path, options, retries - 1);
  }
  if (!response.ok) throw new Refusal(response.status, await response.json().catch(() => null));
  return response;
}

/** The promise of the open dialog for the token; null while it is closed. */
let asking = null;

/** Asks the user for the token, once even if many requests were refused, and says so if the last one was wrong. */
function newToken(wasWrong) {
  asking ??= new Promise((done) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token-input");
    document.getElementById("token-note").textContent = wasWrong ? "The server refused the last token." : "";
    const accept = () => {
      sessionStorage.setItem(TOKEN, input.value.trim());
      input.value = "";
      dialog.close();
    };
    dialog.querySelector("button").onclick = accept;
    input.onkeydown = (event) => event.key === "Enter" && accept();
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => { asking = null; done(); };
    dialog.showModal();
  });
  return asking;
}

/** The options of `fetch` for a JSON body. */
const json = (body, signal) => ({ method: "POST", body, headers: { "content-type": "application/json" }, signal });

/** A request body {rows, ...fields}. Rows are JSON text already: converting thousands of rows to text at every request would
 * take seconds. */
export function jsonWithRows(rows, fields = {}) {
  const others = Object.entries(fields).map(([name, value]) => `,"${name}":${JSON.stringify(value)}`);
  return `{"rows":[${rows.join(",")}]${others.join("")}}`;
}

/** The version, network, methods and limits of the server. */
export const about = async () => (await ask("/api/v1")).json();

/** Embeds images [{blob, name}]: {embedder, pictures: [{row, image} or {error}]}, in the same order. `embedder` is the
 * name of the network that computed the rows. Rows are JSON text; `image` is a text with measures of the image, which
 * `audit` takes back in its field `images`. */
export async function embed(images, signal) {
  const form = new FormData();
  for (const { blob, name } of images) form.append("images", blob, name || "picture");
  const { embedder, pictures } = await (await ask("/api/v1/embed", { method: "POST", body: form, signal })).json();
  return { embedder, pictures: pictures.map((picture) => ({ ...picture, row: picture.row && JSON.stringify(picture.row) })) };
}

/** Audits a support set, given as a request body: the server's answer, whose `items` are in the order of the rows. */
export const audit = async (support, certainty, signal) => (await ask(`/api/v1/audit?certainty=${certainty}`, json(support, signal))).json();
/** Fits and stores a classifier: its description, with its id. */
export const fit = async (support) => (await ask("/api/v1/classifiers", json(support))).json();

/** Predicts the classes of rows: {classes, predictions}. Takes several requests for many rows, or if the server refuses a
 * request as too large. */
export async function predict(id, rows, perRequest = ROWS_PER_REQUEST) {
  const result = { classes: [], predictions: [] };
  for (let at = 0; at < rows.length; at += perRequest) {
    const part = rows.slice(at, at + perRequest);
    let answer;
    try {
      answer = await (await ask(`/api/v1/classifiers/${id}/predict`, json(jsonWithRows(part)))).json();
    } catch (error) {
      if (error.status !== 413 || part.length === 1) throw error;
      answer = await predict(id, part, Math.ceil(part.length / 2));
    }
    result.classes = answer.classes;
    result.predictions.push(...answer.predictions);
  }
  return result;
}

/** The file of a classifier. */
export const download = async (id) => (await ask(`/api/v1/classifiers/${id}/download`)).blob();

/** Removes a classifier. */
export const remove = (id) => ask(`/api/v1/classifiers/${id}`, { method: "DELETE" });

/** Whether the server still stores a classifier. */
export async function isKept(id) {
  try {
    await ask(`/api/v1/classifiers/${id}`);
    return true;
  } catch (error) {
    if (error.status === 404) return false;
    throw error;
  }
}
