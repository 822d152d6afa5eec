// The camera: one photo, or frames for a class as long as a button is held.

import { byId, element, setText } from "./dom.js";
import { counted } from "./wording.js";

/** Milliseconds between two recorded frames: five images per second, as the hint says. */
const FRAME_MS = 200;
/** The longest side of a stored frame in pixels; networks use less. */
const LONGEST_SIDE = 640;

let stream = null;
/** The timer of a recording; null while the button is not held. */
let timer = null;
/** The files so far. */
let frames = [];
/** Resolves the promise of `open` when the dialog is closed. */
let finish = null;

export const isAvailable = () => Boolean(navigator.mediaDevices?.getUserMedia);

/** Takes one photo. Resolves to a list of one file, or of none if the user closes the dialog. */
export const takePhoto = () => open("Camera", "Take a photo", "");

/** Records frames while the button is held. Resolves to their files. */
export const recordFrames = (label) => open(`Camera: ${label}`, "Hold to record", "Hold the button, or the space bar, to add five images per second.");

/** Opens the dialog; `action` is the text of its button. Only recordings have a hint. Resolves to the files at the end. */
async function open(title, action, hint) {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    throw new Error("The camera cannot be used. Check that the browser may access it.");
  }
  const isRecording = hint !== "";
  byId("camera-title").textContent = title;
  byId("camera-take").textContent = action;
  byId("camera-take").dataset.burst = isRecording ? "yes" : "";
  byId("camera-close").textContent = isRecording ? "Done" : "Close";
  setText(byId("camera-hint"), hint);
  frames = [];
  byId("camera-picture").srcObject = stream;
  byId("camera-dialog").showModal();
  await byId("camera-picture").play();
  return new Promise((done) => { finish = done; });
}

/** Whether the dialog records several frames (a burst) instead of taking one photo. */
const isBurst = () => byId("camera-take").dataset.burst === "yes";

/** The name of a frame, made unique by the time: camera-2024-05-31-12-00-00-123.jpg. */
const frameName = () => `camera-${new Date().toISOString().slice(0, 23).replace(/[:.T]/g, "-")}.jpg`;

/** Adds the current frame to the files, as a JPEG. Photos keep their full size. */
async function takeFrame() {
  const video = byId("camera-picture");
  const scale = isBurst() ? Math.min(1, LONGEST_SIDE / Math.max(video.videoWidth, video.videoHeight)) : 1;
  const canvas = element("canvas", { width: Math.round(video.videoWidth * scale), height: Math.round(video.videoHeight * scale) });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  const name = frameName();
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  if (blob) frames.push(new File([blob], name, { type: "image/jpeg" }));
  if (isBurst()) setText(byId("camera-hint"), `${counted(frames.length, "image")} recorded.`);
}

function startBurst() {
  if (!isBurst() || timer !== null) return;
  takeFrame();
  timer = setInterval(takeFrame, FRAME_MS);
}

function stopBurst() {
  clearInterval(timer);
  timer = null;
}

/** Space and Enter held down on the button record like the pointer. */
function press(event) {
  if (!isBurst() || ![" ", "Enter"].includes(event.key)) return;
  event.preventDefault();
  if (!event.repeat) startBurst();
}

async function click() {
  if (isBurst()) return;
  await takeFrame();
  byId("camera-dialog").close();
}

byId("camera-take").onclick = click;
byId("camera-take").onpointerdown = startBurst;
byId("camera-take").onkeydown = press;
byId("camera-take").onkeyup = stopBurst;
byId("camera-take").onblur = stopBurst;
addEventListener("pointerup", stopBurst);
addEventListener("pointercancel", stopBurst);
byId("camera-close").onclick = () => byId("camera-dialog").close();
byId("camera-dialog").onclose = () => {
  stopBurst();
  stream?.getTracks().forEach((track) => track.stop());
  byId("camera-picture").srcObject = null;
  finish?.(frames);
};
