"use strict";
// Classifies images with the engine inside this page, a WebAssembly module (crates/wasm). Nothing is loaded from
// elsewhere, so the page also works as a file. Elements of the page contain the engine, the backbone (the network that
// turns images into embeddings) and the classifier in base64, and the names of the classes as JSON.

const element = (id) => document.getElementById(id);
// `refusedFrom` is the probability of "none of these" from which that is the answer; `listed` is the number of classes to
// list.
const { classes, refusedFrom, listed } = JSON.parse(element("config").textContent);
const canvas = document.createElement("canvas");
const context = canvas.getContext("2d", { willReadFrequently: true });
/** Milliseconds between two images of the camera. */
const CAMERA_PAUSE = 150;
/** The functions and the memory that the engine exports. */
let engine;
/** The stream of the camera; undefined while it is off. */
let stream;
/** The number of the latest image: results of earlier ones are discarded. */
let latest = 0;
/** The URL of the shown image file. */
let shownUrl;

/** Decodes the base64 contents of an element, and removes them from the page to free memory. */
function decodeElement(id) {
  const text = atob(element(id).textContent);
  element(id).textContent = "";
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return bytes;
}

/** Copies bytes into the memory of the engine and returns their address. The engine frees them. */
function copyToEngine(bytes) {
  const address = engine.allocate(bytes.length);
  new Uint8Array(engine.memory.buffer, address, bytes.length).set(bytes);
  return address;
}

/** The numbers in the reply of the engine at an address; throws if the reply is an error message. A reply is two 32-bit
 * words (8 bytes), whether it is an error (1) and its length, followed by 32-bit floats or by the bytes of the message. */
function readReply(address) {
  const [failed, length] = new Uint32Array(engine.memory.buffer, address, 2);
  if (failed) throw new Error(new TextDecoder().decode(new Uint8Array(engine.memory.buffer, address + 8, length)));
  return Array.from(new Float32Array(engine.memory.buffer, address + 8, length));
}

/** Starts the engine and loads backbone and classifier into it. */
async function start() {
  const { instance } = await WebAssembly.instantiate(decodeElement("engine"), {});
  engine = instance.exports;
  const [backbone, classifier] = [decodeElement("backbone"), decodeElement("classifier")];
  const [backboneAddress, classifierAddress] = [copyToEngine(backbone), copyToEngine(classifier)];
  // The reply is empty or an error.
  readReply(engine.load(backboneAddress, backbone.length, classifierAddress, classifier.length));
  element("answer").textContent = "No image yet";
  element("detail").textContent = "Choose an image to see its class.";
  element("camera").hidden = !navigator.mediaDevices?.getUserMedia;
}

/** Classifies an image or a frame of a video. */
function classify(source, width, height) {
  canvas.width = width;
  canvas.height = height;
  context.clearRect(0, 0, width, height);
  context.drawImage(source, 0, 0);
  // RGBA, one byte each. The engine resizes the image.
  const { data } = context.getImageData(0, 0, width, height);
  const [unknown, ...probabilities] = readReply(engine.classify(copyToEngine(data), width, height));
  show(unknown, probabilities);
}

/** A probability in percent as in tables and reports: only exactly 0 and 1 become 0 % and 100 %. */
function percent(probability) {
  const share = 100 * probability;
  if (share > 0 && share <= 0.5) return "<1 %";
  if (share >= 99.5 && share < 100) return ">99 %";
  return `${Math.round(share)} %`;
}

/** Shows the answer: the probability of "none of these", and one probability per class, in the order of `classes`. */
function show(unknown, probabilities) {
  // The indices of the classes, the most probable first.
  const order = classes.map((_, index) => index).sort((a, b) => probabilities[b] - probabilities[a]);
  const best = order[0];
  const refused = unknown >= refusedFrom;
  element("answer").textContent = refused ? "None of these" : classes[best];
  element("detail").textContent = refused
    ? `${percent(unknown)}; most similar: ${classes[best]}`
    : `${percent(probabilities[best])}`;
  const rows = order.slice(0, listed).map((index) => row(classes[index], probabilities[index], ""));
  rows.push(row("none of these", unknown, "none"));
  element("classes").replaceChildren(...rows);
  element("more").hidden = order.length <= listed;
  element("more").textContent = `and ${order.length - listed} less probable classes`;
  element("problem").hidden = true;
}

/** A line of the list of classes, with a bar; `kind` is its CSS class. */
function row(name, probability, kind) {
  const item = document.createElement("li");
  item.className = kind;
  item.dataset.probability = probability;
  const label = item.appendChild(document.createElement("div"));
  label.className = "label";
  label.appendChild(document.createElement("span")).textContent = name;
  label.appendChild(document.createElement("span")).textContent = percent(probability);
  const track = item.appendChild(document.createElement("div"));
  track.className = "track";
  track.appendChild(document.createElement("div")).style.width = `${100 * probability}%`;
  return item;
}

/** Shows an error instead of an answer. */
function fail(message) {
  element("answer").textContent = "No answer";
  element("detail").textContent = "";
  element("classes").replaceChildren();
  element("more").hidden = true;
  element("problem").textContent = message;
  element("problem").hidden = false;
}

/** Shows and classifies a file. */
async function open(file) {
  stopCamera();
  const number = ++latest;
  let bitmap;
  try {
    // Colours as in the file, without conversion for this screen.
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    if (number === latest) fail(`${file.name || "This"} is not an image that this browser can read.`);
    return;
  }
  if (number === latest) {
    URL.revokeObjectURL(shownUrl);
    shownUrl = URL.createObjectURL(file);
    element("shown").src = shownUrl;
    element("shown").hidden = false;
    element("invitation").hidden = true;
    attempt(() => classify(bitmap, bitmap.width, bitmap.height));
  }
  bitmap.close();
}

/** Runs the classification of an image, and shows its error. */
function attempt(work) {
  try {
    work();
  } catch (error) {
    fail(`The image could not be classified: ${error.message}`);
  }
}

/** Classifies what the camera sees until it is stopped or another image is given. */
async function startCamera() {
  const number = ++latest;
  const video = element("video");
  let opened;
  try {
    // The user may take long to allow the camera, and give an image or start the camera again meanwhile.
    opened = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    if (number === latest) {
      video.srcObject = opened;
      await video.play();
    }
  } catch (error) {
    stopTracks(opened);
    if (number === latest) fail(`The camera cannot be used: ${error.message}`);
    return;
  }
  if (number !== latest) return stopTracks(opened);
  stream = opened;
  element("camera").textContent = "Stop the camera";
  element("invitation").hidden = element("shown").hidden = true;
  video.hidden = false;
  const next = () => {
    if (number !== latest || !stream) return;
    if (video.videoWidth > 0) attempt(() => classify(video, video.videoWidth, video.videoHeight));
    setTimeout(next, CAMERA_PAUSE);
  };
  next();
}

/** Turns off the camera of a stream, if there is one. */
const stopTracks = (opened) => opened?.getTracks().forEach((track) => track.stop());

function stopCamera() {
  if (!stream) return;
  stopTracks(stream);
  stream = undefined;
  element("video").hidden = true;
  element("invitation").hidden = false;
  element("camera").textContent = "Use the camera";
}

/** The first image of dropped or pasted files, or else the first file, for which an error is shown. */
const firstImage = (list) => Array.from(list ?? []).find((file) => file.type.startsWith("image/")) ?? list?.[0];

start().then(
  () => {
    element("file").addEventListener("change", () => {
      const file = element("file").files[0];
      if (file) open(file);
      element("file").value = "";
    });
    element("camera").addEventListener("click", () => (stream ? stopCamera() : startCamera()));
    document.addEventListener("paste", (event) => {
      const file = firstImage(event.clipboardData?.files);
      if (file) open(file);
    });
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      element("drop").classList.add("over");
    });
    document.addEventListener("dragleave", () => element("drop").classList.remove("over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      element("drop").classList.remove("over");
      const file = firstImage(event.dataTransfer?.files);
      if (file) open(file);
    });
    document.body.dataset.ready = "true";
  },
  (error) => fail(`The classifier could not be started: ${error.message}`),
);
