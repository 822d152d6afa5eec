// Writes a folder of small images of three classes, of which two images are exchanged: node photos.mjs FOLDER
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

/**
 * Image `number` of a kind as a 24-bit BMP: a header of 54 bytes, then the pixels as blue, green, red. The number shifts
 * the pattern, makes it coarser and its colour darker, so that the images of a kind differ.
 */
function bitmap(kind, number) {
  const bytes = Buffer.alloc(54 + side * side * 3);
  // Size of the file, start of the pixels, size of the second header, width, height, planes, bits per pixel.
  bytes.write("BM");
  bytes.writeUInt32LE(bytes.length, 2);
  bytes.writeUInt32LE(54, 10);
  bytes.writeUInt32LE(40, 14);
  bytes.writeInt32LE(side, 18);
  bytes.writeInt32LE(side, 22);
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  for (let pixel = 0; pixel < side * side; pixel++) {
    const isLight = kinds[kind]((pixel % side) + 5 * number, Math.floor(pixel / side) + 3 * number, 10 + number);
    const colour = isLight ? colours[kind].map((value) => Math.max(0, value - 10 * number)) : [25, 40, 15];
    bytes.set(colour, 54 + 3 * pixel);
  }
  return bytes;
}

for (const kind of Object.keys(kinds)) {
  mkdirSync(`${folder}/${kind}`, { recursive: true });
  for (let number = 0; number < 6; number++) {
    // The first image in "rings" shows stripes, and the first in "stripes" shows rings.
    const shown = number > 0 ? kind : { rings: "stripes", stripes: "rings" }[kind] ?? kind;
    writeFileSync(`${folder}/${kind}/${number}.bmp`, bitmap(shown, number));
  }
}
