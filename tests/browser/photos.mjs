// Writes a folder of small images of three classes, two of them exchanged: node photos.mjs FOLDER
import { mkdirSync, writeFileSync } from "node:fs";

const [folder] = process.argv.slice(2);
const side = 96; // pixels
// Whether a pixel of each kind is light; `width` is that of a check, ring or stripe.
const kinds = {
  checks: (x, y, width) => (Math.floor(x / width) + Math.floor(y / width)) % 2,
  rings: (x, y, width) => Math.floor(Math.hypot(x - 60, y - 55) / width) % 2,
  stripes: (x, y, width) => Math.floor(x / width) % 2,
};
// Of light pixels, as blue, green, red.
const colours = { checks: [220, 230, 230], rings: [40, 60, 220], stripes: [200, 90, 30] };

/** Image `number` of a kind as a 24-bit BMP: a header of 54 bytes, then the pixels as blue, green, red. */
function bitmap(kind, number) {
  const bytes = Buffer.alloc(54 + side * side * 3);
  bytes.write("BM");
  bytes.writeUInt32LE(bytes.length, 2);
  bytes.writeUInt32LE(54, 10);
  bytes.writeUInt32LE(40, 14);
  bytes.writeInt32LE(side, 18);
  bytes.writeInt32LE(side, 22);
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  for (let place = 0; place < side * side; place++) {
    const lit = kinds[kind]((place % side) + 5 * number, Math.floor(place / side) + 3 * number, 10 + number);
    const colour = lit ? colours[kind].map((value) => Math.max(0, value - 10 * number)) : [25, 40, 15];
    bytes.set(colour, 54 + 3 * place);
  }
  return bytes;
}

for (const kind of Object.keys(kinds)) {
  mkdirSync(`${folder}/${kind}`, { recursive: true });
  for (let number = 0; number < 6; number++) {
    // The first image of rings shows stripes, and the other way round.
    const shown = number > 0 ? kind : { rings: "stripes", stripes: "rings" }[kind] ?? kind;
    writeFileSync(`${folder}/${kind}/${number}.bmp`, bitmap(shown, number));
  }
}
