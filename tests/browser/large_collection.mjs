// A collection of thousands of images with a mocked server: rows and verdicts are made up.

/** Mocks embeddings and audits for a page: every 20th image is suspect, every 50th is to be reviewed. */
export async function mockLargeServer(page) {
  // The page embeds all images again when the name of the network changes.
  let embedder = null;
  await page.route("**/api/v1/embed", async (route) => {
    embedder ??= (await (await page.request.get(new URL("/api/v1", route.request().url()).href)).json()).embedder;
    const count = (route.request().postDataBuffer().toString("latin1").match(/filename="/g) ?? []).length;
    const pictures = Array.from({ length: count }, (_, index) => ({ item: String(index), row: [1, 0, index], image: null }));
    await route.fulfill({ json: { embedder, pictures } });
  });
  await page.route("**/api/v1/audit?*", async (route) => {
    const { items, labels } = JSON.parse(route.request().postData());
    await route.fulfill({ json: madeUpAudit(items, labels) });
  });
}

/** The JSON of an audit of these items and labels. */
function madeUpAudit(items, labels) {
  const classes = [...new Set(labels)];
  const entries = items.map((item, index) => madeUpVerdict(item, labels[index], classes, index));
  const count = (action) => entries.filter((entry) => entry.action === action).length;
  const counts = { items: items.length, classes: classes.length, relabel: count("relabel"), quarantine: 0, review: count("review"), keep: count("keep"), confirmed: 0, suspect: count("relabel") };
  return { items: entries, counts, expected_wrong: counts.suspect, classes: [], duplicates: [], image_problems: [], warnings: [], skipped: [] };
}

/** The entry of one item in an audit; `index` decides the verdict. */
function madeUpVerdict(item, given, classes, index) {
  const other = classes[(classes.indexOf(given) + 1) % classes.length];
  const probable = [{ class: given, p: 0.6 }, { class: other, p: 0.3 }, { class: null, p: 0.1 }];
  const common = { item, given, weight: 1, p_outlier: 0.1, probable, neighbours: [], suggested: null };
  if (index % 20 === 0) return { ...common, p_wrong: 0.9, verdict: "relabel", action: "relabel", suggested: other };
  if (index % 50 === 1) return { ...common, p_wrong: 0.4, verdict: "unsure", action: "review" };
  return { ...common, p_wrong: 0.05, verdict: "keep", action: "keep" };
}

/** Drops a folder of small drawn images, made in the page: image-C-N.png in class-C. */
export function dropManyFiles(page, { classes, perClass }) {
  return page.evaluate(async ([classes, perClass]) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 96, height: 96 });
    const pen = canvas.getContext("2d");
    const image = async (hue, number) => {
      pen.fillStyle = `hsl(${hue} 60% ${40 + (number % 40)}%)`;
      pen.fillRect(0, 0, 96, 96);
      pen.fillStyle = "white";
      pen.fillText(String(number), 20, 50);
      return new Promise((done) => canvas.toBlob(done, "image/png"));
    };
    const file = async (folder, number) => {
      const name = `image-${folder}-${number}.png`;
      const content = new File([await image((360 * folder) / classes, number)], name, { type: "image/png" });
      return { isFile: true, name, file: (done) => done(content) };
    };
    const entry = async (folder) => {
      const files = await Promise.all(Array.from({ length: perClass }, (_, number) => file(folder, number)));
      return { isFile: false, name: `class-${folder}`, createReader: () => ({ readEntries: (done) => done(files.splice(0, 100)) }) };
    };
    const folders = await Promise.all(Array.from({ length: classes }, (_, folder) => entry(folder)));
    // The page reads a dropped folder by the interface of file system entries, of which only the used part is imitated.
    // It calls readEntries until it returns no more.
    const event = new Event("drop", { bubbles: true, cancelable: true });
    event.dataTransfer = { types: ["Files"], items: folders.map((folder) => ({ kind: "file", webkitGetAsEntry: () => folder })), getData: () => "" };
    document.querySelector("#intake").dispatchEvent(event);
  }, [classes, perClass]);
}
