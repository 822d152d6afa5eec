// Tests of the report pages in light and dark mode and on a phone: nothing is loaded from other servers, nothing
// overflows, and everything is readable.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const page_url = `file://${process.env.PAGES}/demo.html`;
const methods = ["oracle", "protonet", "median", "euclidean", "absolute", "cosine", "nearest", "linear", "matching", "baseline++", "rnnp", "simpleshot", "relabel", "tranfs"];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let browser;

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});
after(() => browser.close());

/** Opens the page and records errors and requests to other servers. */
async function open(options, url = page_url) {
  const page = await browser.newPage(options);
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith("file:") && !request.url().startsWith("data:")) problems.push(`asks for ${request.url()}`);
  });
  await page.goto(url);
  return { page, problems };
}

/** The WCAG contrast between the colour of an element and its background. */
function contrast(page, selector) {
  return page.$eval(selector, (element) => {
    const canvas = document.createElement("canvas").getContext("2d");
    const rgb = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const luminance = (colour) => {
      const [r, g, b] = colour.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let behind = element;
    while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const style = getComputedStyle(element);
    const foreground = luminance(rgb(element instanceof SVGElement ? style.fill : style.color));
    const background = luminance(rgb(behind ? getComputedStyle(behind).backgroundColor : "white"));
    return (Math.max(foreground, background) + 0.05) / (Math.min(foreground, background) + 0.05);
  });
}

for (const colorScheme of ["light", "dark"]) {
  describe(`the demo's page, ${colorScheme}`, () => {
    test("is complete, readable and asks for nothing from outside", async () => {
      const { page, problems } = await open({ colorScheme, viewport: { width: 1100, height: 900 } });
      assert.deepEqual(problems, []);
      const loaded = await page.$$eval(".support img", (images) => images.map((image) => image.complete && image.naturalWidth > 0));
      assert.equal(loaded.length, 25);
      assert.ok(loaded.every(Boolean), "a drawing did not load");
      assert.equal(await page.locator(".support li.wrong").count(), 10, "two of five labels are wrong in five classes");
      const [right, wrong] = await Promise.all(["right", "wrong"].map((kind) =>
        page.$eval(`.support li.${kind} img`, (image) => getComputedStyle(image).borderTopColor)));
      assert.notEqual(right, wrong);
      for (const selector of ["h1", ".lead", ".facts", "caption", "td", ".truth", ".class dt", ".chart .axis text", "footer dd"]) {
        assert.ok((await contrast(page, selector)) >= 4.5, `${selector} is hard to read`);
      }
      await page.close();
    });

    for (const [device, width] of [["a screen", 1100], ["a phone", 360]]) test(`draws six lines in their own colours, and all on request, with names that do not cover each other, on ${device}`, async () => {
      const { page } = await open({ colorScheme, viewport: { width, height: 900 } });
      const charts = () => page.locator(".chart:visible").elementHandles();
      const few = await charts();
      assert.ok(few.length > 0);
      for (const chart of few) {
        const lines = await chart.$$eval(".series", (lines) => lines.map((line) => [line.querySelector("title").textContent, getComputedStyle(line.querySelector("polyline")).stroke]));
        assert.equal(lines.length, 6);
        assert.ok(["oracle", "protonet", "relabel"].every((name) => lines.some(([shown]) => shown === name)), String(lines));
        assert.equal(new Set(lines.map(([, colour]) => colour)).size, 6, String(lines));
      }
      await checkNames(few, 6);
      for (const summary of await page.locator(".charts summary").all()) await summary.click();
      const all = await charts();
      assert.equal(all.length, few.length);
      await checkNames(all, methods.length);
      await page.close();
    });

    /** Checks that the names at the ends of lines are complete, large enough to read and do not cover each other. */
    async function checkNames(charts, count) {
      for (const chart of charts) {
        const names = await chart.$$eval(".series > text", (texts) =>
          texts.map((text) => ({ name: text.textContent, box: text.getBoundingClientRect().toJSON() })));
        assert.equal(names.length, count);
        assert.ok(names.every(({ name }) => methods.includes(name)), String(names.map(({ name }) => name)));
        const frame = await chart.boundingBox();
        const sorted = names.toSorted((a, b) => a.box.y - b.box.y);
        sorted.forEach(({ name, box }, place) => {
          assert.ok(box.right <= frame.x + frame.width, `${name} hangs over the edge`);
          assert.ok(box.bottom <= frame.y + frame.height, `${name} hangs below the edge`);
          assert.ok(box.height >= 9, `${name} is ${box.height} pixels high`);
          if (place > 0) assert.ok(box.y - sorted[place - 1].box.y >= 9, `${name} covers ${sorted[place - 1].name}`);
        });
      }
    }
  });
}

test("the page of the demo's audit has every drawing and frames those in the wrong folder", async () => {
  const { page, problems } = await open({ viewport: { width: 1100, height: 900 } }, page_url.replace(".html", "-audit.html"));
  assert.deepEqual(problems, []);
  assert.equal(await page.locator("li.item > img").count(), 60);
  const framed = page.locator("li.item.relabel > img");
  assert.equal(await framed.count(), 6);
  for (const image of await framed.all()) {
    // Images outside the window are loaded when they are scrolled to.
    await image.scrollIntoViewIfNeeded();
    await image.evaluate((image) => image.decode());
  }
  await page.close();
});

test("on a telephone only tables scroll sideways", async () => {
  const { page } = await open({ viewport: { width: 360, height: 740 } });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 360, `the page is ${width} wide`);
  await page.close();
});

test("a table that is wider than a phone shows that it goes on, keeps its first column and can be scrolled by keyboard", async () => {
  const { page } = await open({ viewport: { width: 360, height: 740 } });
  const wide = page.locator(".scroll").first();
  const { scrolls, shadow } = await wide.evaluate((one) => ({ scrolls: one.scrollWidth > one.clientWidth, shadow: getComputedStyle(one).backgroundImage }));
  assert.ok(scrolls && shadow.includes("gradient"));
  const left = () => wide.locator("tbody th").first().evaluate((cell) => cell.getBoundingClientRect().x);
  const before = await left();
  await wide.focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction((one) => one.scrollLeft > 0, await wide.elementHandle());
  assert.equal(await left(), before);
  await page.close();
});

for (const options of [{ colorScheme: "light" }, { colorScheme: "dark" }, { viewport: { width: 360, height: 740 } }]) {
  test(`axe finds no accessibility problem, ${JSON.stringify(options)}`, async () => {
    const { page } = await open(options);
    await page.evaluate(axe);
    const found = await page.evaluate(() => window.axe.run());
    assert.deepEqual(found.violations.map((one) => `${one.id}, ${one.nodes[0].html}`), []);
    await page.close();
  });
}

test("every line of a chart can be reached by keyboard and is named", async () => {
  const { page } = await open({ viewport: { width: 1100, height: 900 } });
  const titles = await page.$$eval(".chart .series", (lines) => lines.map((line) => [line.tabIndex, line.querySelector("title")?.textContent]));
  assert.ok(titles.length >= methods.length);
  assert.ok(titles.every(([tab, title]) => tab === 0 && title), "a line has no name or cannot be focused");
  await page.close();
});
