/**
 * Converts a picture of one digit, of any size, to the model's input. The result equals that of
 * `../classify-digits/src/prepare.rs` bit by bit.
 */

import type { Picture } from "./picture.ts";

/** Side of the model's input, in pixels. */
export const SIDE = 8;

const fp32 = Math.fround;
/** Ink threshold for cropping, from 0 to 1. */
const INK = fp32(0.3);
/** A picture with a smaller range of grey is blank. */
const BLANK = fp32(1 / 20);

/**
 * Crops the digit, scales it to `SIDE` x `SIDE` and stretches its contrast; undefined for a
 * blank picture.
 *
 * The picture's border determines whether the drawing is dark on light or light on dark.
 */
export function prepare(picture: Picture): Float32Array | undefined {
  const { width, height } = picture;
  const ink = inkOf(picture);
  if (ink === undefined) return undefined;
  const [columns, rows] = extent(ink, width);
  const side = Math.max(columns.end - columns.first, rows.end - rows.first);
  const [across, down] = [shares(columns, side, width), shares(rows, side, height)];
  const cells = new Float64Array(SIDE * SIDE);
  for (const [y, heights] of down) {
    for (const [x, widths] of across) {
      const value = ink[y * width + x]!;
      for (const [row, height] of heights) {
        for (const [column, width] of widths) cells[row * SIDE + column]! += value * height * width;
      }
    }
  }
  const most = Math.max(...cells);
  return Float32Array.from(cells, (cell) => cell / most);
}

/** The picture as ink from 0 to 1. */
function inkOf({ grey, width }: Picture): Float32Array | undefined {
  const low = grey.reduce((low, value) => Math.min(low, value));
  const high = grey.reduce((high, value) => Math.max(high, value));
  if (fp32(high - low) < BLANK) return undefined;
  const scale = fp32(1 / fp32(high - low));
  const stretched = (offset: number, scale: number) => grey.map((value) => offset + fp32(scale * value));
  const ink = stretched(fp32(-low * scale), scale);
  return borderMean(ink, width) > 0.5 ? stretched(fp32(high * scale), -scale) : ink;
}

function borderMean(ink: Float32Array, width: number): number {
  const height = ink.length / width;
  let [sum, count] = [0, 0];
  for (let y = 0; y < height; y++) {
    const step = y === 0 || y + 1 === height ? 1 : Math.max(width - 1, 1);
    for (let x = 0; x < width; x += step) {
      sum += ink[y * width + x]!;
      count += 1;
    }
  }
  return fp32(sum / count);
}

/** Pixels from `first` up to but not including `end`. */
interface Extent {
  first: number;
  end: number;
}

/** The columns and the rows that contain ink. They exist: the stretch makes the largest value 1. */
function extent(ink: Float32Array, width: number): [Extent, Extent] {
  const columns = { first: Infinity, end: 0 };
  const rows = { first: Infinity, end: 0 };
  const takeIn = (extent: Extent, pixel: number) => {
    extent.first = Math.min(extent.first, pixel);
    extent.end = Math.max(extent.end, pixel + 1);
  };
  ink.forEach((value, at) => {
    if (value <= INK) return;
    takeIn(columns, at % width);
    takeIn(rows, Math.floor(at / width));
  });
  return [columns, rows];
}

/**
 * `SIDE` cells over `side` pixels around the middle of `extent`: each pixel that overlaps a
 * cell, and its cells with the length of the overlap.
 */
function shares({ first, end }: Extent, side: number, pixels: number): [number, [number, number][]][] {
  const start = (first + end - side) / 2;
  const length = side / SIDE;
  const over = (pixel: number): [number, number][] => {
    const [left, right] = [pixel - start, pixel + 1 - start];
    const covered: [number, number][] = [];
    const last = Math.min(Math.ceil(Math.max(right / length, 0)), SIDE);
    for (let cell = Math.floor(Math.max(left / length, 0)); cell < last; cell++) {
      const part = Math.min(right, (cell + 1) * length) - Math.max(left, cell * length);
      if (part > 0) covered.push([cell, part]);
    }
    return covered;
  };
  const from = Math.floor(Math.max(start, 0));
  const to = Math.min(Math.ceil(Math.max(start + length * SIDE, 0)), pixels);
  return Array.from({ length: Math.max(to - from, 0) }, (_, at) => [from + at, over(from + at)]);
}
