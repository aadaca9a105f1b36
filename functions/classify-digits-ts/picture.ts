/**
 * Greyscale pictures from PNGs or from numbers. Grey is fp32, as in `../classify-digits`, and
 * rounded at every step.
 */

import { decode } from "fast-png";
import { StatusError } from "weir";

/** Largest number of pixels of a picture: 2048 x 2048. */
const PIXELS_MAX = 1 << 22;
/** Offset of the width and height in a PNG. */
const PNG_SIZE_AT = 16;

/** Greyscale pixels from 0 to 1, row by row; at least one pixel. */
export interface Picture {
  width: number;
  height: number;
  grey: Float32Array;
}

/**
 * Decodes a PNG of any colour type. Transparent pictures get a background that contrasts with
 * the drawing.
 */
export function fromPng(body: Uint8Array): Picture {
  if (body.length >= PNG_SIZE_AT + 8) {
    const view = new DataView(body.buffer, body.byteOffset);
    checkSize(view.getUint32(PNG_SIZE_AT), view.getUint32(PNG_SIZE_AT + 4));
  }
  const { width, height, channels, depth, data, palette } = decoded(body);
  const sample = (at: number) => (depth > 8 ? data[at]! >> 8 : data[at]!);
  const unit = (value: number) => Math.fround(value / 255);
  const grey = new Float32Array(width * height);
  const alpha = new Float32Array(width * height).fill(1);
  const rowBits = width * channels * depth;
  const rowBytes = Math.ceil(rowBits / 8);
  for (let at = 0; at < grey.length; at++) {
    if (depth < 8) {
      const bit = (at % width) * depth;
      const packed = data[Math.floor(at / width) * rowBytes + (bit >> 3)]!;
      const value = (packed >> (8 - depth - (bit & 7))) & ((1 << depth) - 1);
      const colour = palette?.[value];
      grey[at] = colour ? luma(colour[0]!, colour[1]!, colour[2]!) : unit(Math.floor((value * 255) / ((1 << depth) - 1)));
      alpha[at] = unit(colour?.[3] ?? 255);
    } else if (palette) {
      const colour = palette[data[at]!] ?? [0, 0, 0];
      grey[at] = luma(colour[0]!, colour[1]!, colour[2]!);
      alpha[at] = unit(colour[3] ?? 255);
    } else {
      const first = at * channels;
      grey[at] = channels < 3 ? unit(sample(first)) : luma(sample(first), sample(first + 1), sample(first + 2));
      if (channels % 2 === 0) alpha[at] = unit(sample(first + channels - 1));
    }
  }
  return { width, height, grey: alpha.every((opaque) => opaque === 1) ? grey : onPaper(grey, alpha) };
}

/**
 * Creates a picture from rows of grey. Values up to 1 are used unchanged; if there are larger
 * values, the largest counts as 1.
 */
export function fromRows(rows: number[][]): Picture {
  const width = rows[0]?.length ?? 0;
  if (width === 0) throw new StatusError(400, "`pixels` is empty");
  checkSize(width, rows.length);
  rows.forEach((row, at) => {
    if (row.length !== width) {
      throw new StatusError(400, `row ${at} of \`pixels\` has ${row.length} numbers and the first row has ${width}`);
    }
    if (!row.every((pixel) => Math.fround(pixel) < Infinity && pixel >= 0)) {
      throw new StatusError(400, `row ${at} of \`pixels\` has a number that is negative or not finite`);
    }
  });
  const grey = Float32Array.from(rows.flat());
  const largest = grey.reduce((most, value) => Math.max(most, value), 1);
  return { width, height: rows.length, grey: grey.map((value) => value / largest) };
}

function checkSize(width: number, height: number): void {
  if (width * height <= PIXELS_MAX) return;
  throw new StatusError(413, `the picture has ${width} x ${height} pixels; at most ${PIXELS_MAX} in all are taken`);
}

function decoded(body: Uint8Array): ReturnType<typeof decode> {
  try {
    return decode(body, { checkCrc: true });
  } catch (error) {
    throw new StatusError(400, `this is not a PNG that can be read: ${(error as Error).message}`);
  }
}

/** Perceived brightness of a colour (ITU-R BT.601). */
function luma(red: number, green: number, blue: number): number {
  const part = (weight: number, value: number) => Math.fround(Math.fround(weight) * Math.fround(value / 255));
  return Math.fround(Math.fround(part(0.299, red) + part(0.587, green)) + part(0.114, blue));
}

/** Composes the drawing on a white background if it is dark, and on black if it is light. */
function onPaper(grey: Float32Array, alpha: Float32Array): Float32Array {
  const drawn = grey.map((value, at) => value * alpha[at]!);
  const sum = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0);
  const paper = sum(drawn) < sum(alpha) * 0.5 ? 1 : 0;
  return drawn.map((value, at) => value + paper * Math.fround(1 - alpha[at]!));
}
