// Measures the served page in headless Chromium:
//
//     (cd tests/browser && npm install)
//     TRUESHOT_BIN=target/release/trueshot node bench/measure/page_speed.mjs PHOTOS
//
// PHOTOS is a folder of class folders. Prints:
//
// - the seconds from choosing that folder to the result, with the built-in network and an empty cache
// - for 5,000 small images whose verdicts are made up: how many cards are in the document, the times between frames
//   while scrolling by 100 pixels per frame, and the seconds of a search by name
//
// The environment variable CHROMIUM is the browser's program (by default /usr/bin/chromium). Measure on an idle machine.
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { dropManyFiles, mockLargeServer } from "../../tests/browser/large_collection.mjs";

const { chromium } = createRequire(resolve(import.meta.dirname, "../../tests/browser/package.json"))("playwright-core");
const [photos] = process.argv.slice(2);
const program = process.env.TRUESHOT_BIN;
if (!photos || !program) {
  console.error("usage: TRUESHOT_BIN=PROGRAM node bench/measure/page_speed.mjs PHOTOS");
  process.exit(2);
}

/** Starts a server and waits for its address. */
function serve(folder) {
  const options = ["serve", "--port", "0", "--data-dir", folder, "--no-cache"];
  const server = spawn(program, options, { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((ready, failed) => {
    server.stdout.once("data", (line) => ready({ server, address: String(line).trim() }));
    server.once("exit", (code) => failed(new Error(`the server ended with ${code}`)));
  });
}

/** Waits until the function `holds` returns true in the page. */
async function until(page, holds) {
  while (!(await page.evaluate(holds))) await new Promise((done) => setTimeout(done, 20));
}

/** Whether the page shows the result of an audit: its status line counts suspect items. */
const isDone = () => /suspect;/.test(document.getElementById("status").textContent);

/** The seconds that a function takes, as text. */
async function seconds(work) {
  const begin = performance.now();
  await work();
  return ((performance.now() - begin) / 1000).toFixed(1);
}

/** Opens the served page and waits until it is ready. */
async function open(browser, address) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  await page.goto(address);
  await until(page, () => document.getElementById("about").textContent !== "");
  return page;
}

/** The times between 400 frames, in milliseconds, while scrolling. */
const scrolled = () => new Promise((done) => {
  const times = [];
  let last = performance.now();
  const frame = (now) => {
    times.push(now - last);
    last = now;
    scrollBy({ top: 100, behavior: "instant" });
    if (times.length < 400) requestAnimationFrame(frame); else done(times.slice(1));
  };
  requestAnimationFrame(frame);
});

const folder = mkdtempSync(join(tmpdir(), "trueshot-page-"));
const { server, address } = await serve(folder);
let browser;
try {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  const page = await open(browser, address);
  const count = readdirSync(photos, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile()).length;
  const first = await seconds(async () => { await page.setInputFiles("#folder-input", photos); await until(page, isDone); });
  console.log(`${count} photos: ${first} s from choosing the folder to the result`);
  await page.close();

  const large = await open(browser, address);
  await mockLargeServer(large);
  await dropManyFiles(large, { classes: 10, perClass: 500 });
  await until(large, isDone);
  console.log(`5,000 images: ${await large.locator(".class .card").count()} cards in the document`);
  const times = (await large.evaluate(scrolled)).sort((a, b) => a - b);
  const at = (share) => times[Math.floor(share * (times.length - 1))].toFixed(0);
  console.log(`scrolling: ${at(0.5)}, ${at(0.95)} and ${at(1)} ms between frames (median, 95 %, longest)`);
  const searchSeconds = await seconds(async () => {
    await large.fill("#search", "image-5-7");
    await until(large, () => / of 5000 shown/.test(document.getElementById("shown").textContent));
  });
  console.log(`searching by name: ${searchSeconds} s`);
} finally {
  await browser?.close();
  server.removeAllListeners("exit");
  server.kill("SIGINT");
  rmSync(folder, { recursive: true });
}
