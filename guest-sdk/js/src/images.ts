/**
 * Images: JPEG, PNG and WebP, decoded, resized and normalised on the node, straight into tensors.
 * The function needs no image library, and the pixels do not enter its memory.
 *
 * ```ts
 * import { images, Model } from "weir";
 *
 * const image = images.decode(request.tensor("uint8", [-1]), {
 *   resize: 256,
 *   fit: "outside",
 *   crop: 224,
 *   mean: [0.485, 0.456, 0.406],
 *   std: [0.229, 0.224, 0.225],
 * });
 * const scores = Model.open("squeezenet").infer({ data: image }).only();
 * ```
 *
 * An image that is damaged or too large is an {@link InvalidArgument}, which becomes a response with
 * status 400.
 *
 * @module
 */

import { decode as decodeRaw, inspect, type Options as RawOptions } from "weir:inference/image@0.1.0";
import type { ElementType } from "./elements.ts";
import { asked, InvalidArgument } from "./errors.ts";
import { kindOf } from "./kinds.ts";
import { Tensor } from "./tensor.ts";

const FITS = ["fill", "cover", "contain", "inside", "outside"] as const;
const FILTERS = ["nearest", "bilinear", "bicubic", "lanczos"] as const;
const CHANNELS = ["rgb", "bgr", "grey"] as const;
const LAYOUTS = ["nchw", "nhwc"] as const;
const TYPES = ["uint8", "fp16", "bf16", "fp32"] as const;

/** A width and a height in pixels, or one number for both. */
export type Size = number | readonly [width: number, height: number];

/** Format and size of an encoded image. */
export interface ImageInfo {
  format: "jpeg" | "png" | "webp";
  /** Columns of the image as it is displayed, with its EXIF orientation applied. */
  width: number;
  /** Rows. */
  height: number;
}

/**
 * Options of a decoding. The node takes the steps in this order: EXIF orientation, background,
 * channels, resize, crop, normalisation.
 */
export interface DecodeOptions {
  /** The size of the image. Without it, the image keeps its own. */
  resize?: Size;
  /**
   * How a resize treats the aspect ratio: `fill` (the default) for exactly the size, `cover` for
   * the centre of the smallest image that covers it, `contain` for the largest image within it with
   * margins, `inside` for the same without margins, `outside` for the smallest image that covers
   * it, uncropped.
   */
  fit?: (typeof FITS)[number];
  /**
   * `bilinear` (the default), `bicubic` and `lanczos` average when they shrink an image, and give
   * the pixels of Pillow.
   */
  filter?: (typeof FILTERS)[number];
  /** Keeps the centre of the image, of this size. */
  crop?: Size;
  /** The channels of the tensor: `rgb` (the default), `bgr` or `grey`. */
  channels?: (typeof CHANNELS)[number];
  /** The order of the dimensions: `nchw` (the default) or `nhwc`. */
  layout?: (typeof LAYOUTS)[number];
  /**
   * `fp32` (the default), `fp16` or `bf16` for normalised pixels, `(pixel * scale - mean) / std`;
   * `uint8` for the pixels themselves.
   */
  type?: (typeof TYPES)[number];
  /** The factor of each pixel, from 0 to 255. The default is 1/255. */
  scale?: number;
  /** One number per channel, or one for all. The default is 0. */
  mean?: number | readonly number[];
  /** One number per channel, or one for all. The default is 1. */
  std?: number | readonly number[];
  /**
   * The red, green and blue behind transparent pixels and of margins. Without it, transparency is
   * ignored and margins are black.
   */
  background?: readonly [red: number, green: number, blue: number];
  /** Keeps the pixels as stored, whatever the EXIF orientation. */
  ignoreOrientation?: boolean;
}

/**
 * Reads the header of an encoded image, without decoding it.
 *
 * @throws {InvalidArgument} for anything but a JPEG, PNG or WebP image.
 */
export function info(encoded: Uint8Array | Tensor): ImageInfo {
  return withTensor(encoded, (tensor) => asked(() => inspect(tensor.raw)) as ImageInfo);
}

/**
 * Decodes an image into a tensor of four dimensions, which a model can take as it is: `[1, channels,
 * height, width]`, or `[1, height, width, channels]` with the layout `nhwc`.
 *
 * `encoded` is the bytes of the image, or a `uint8` tensor with them: `request.tensor("uint8",
 * [-1])` makes one of the body, without a copy through the function.
 *
 * @throws {InvalidArgument} for an image that is damaged or exceeds the node's limits, and {@link
 * ResourceExhausted} above the function's limit of tensor bytes.
 */
export function decode(encoded: Uint8Array | Tensor, options: DecodeOptions = {}): Tensor {
  const raw = lowered(options);
  return withTensor(encoded, (tensor) => new Tensor(asked(() => decodeRaw(tensor.raw, raw))));
}

/** Converts options to the node's format. Validates them, because the engine ends the call on an invalid value. */
function lowered(options: DecodeOptions): RawOptions {
  const to = size("resize", options.resize);
  return {
    resize: to && { to, fit: one("fit", FITS, options.fit, "fill"), filter: one("filter", FILTERS, options.filter, "bilinear") },
    crop: size("crop", options.crop),
    channels: one("channels", CHANNELS, options.channels, "rgb"),
    layout: one("layout", LAYOUTS, options.layout, "nchw"),
    elementType: one("type", TYPES, options.type, "fp32") satisfies ElementType,
    scale: options.scale === undefined ? null : numbers("scale", options.scale)[0]!,
    mean: numbers("mean", options.mean),
    std: numbers("std", options.std),
    background: colour(options.background),
    ignoreOrientation: options.ignoreOrientation === true,
  };
}

function withTensor<T>(encoded: Uint8Array | Tensor, use: (tensor: Tensor) => T): T {
  if (encoded instanceof Tensor) return use(encoded);
  if (!(encoded instanceof Uint8Array)) throw new TypeError(`an encoded image is a Uint8Array or a Tensor, and not ${kindOf(encoded)}`);
  using tensor = Tensor.from(encoded);
  return use(tensor);
}

function one<T extends string>(name: string, cases: readonly T[], wanted: T | undefined, usual: T): T {
  if (wanted === undefined) return usual;
  if (!cases.includes(wanted)) throw new InvalidArgument(`${name} is ${JSON.stringify(wanted)}; it can be: ${cases.join(", ")}`);
  return wanted;
}

function size(name: string, wanted: Size | undefined): { width: number; height: number } | null {
  if (wanted === undefined) return null;
  const sides = typeof wanted === "number" ? [wanted, wanted] : wanted;
  if (sides.length !== 2 || !sides.every((side) => Number.isInteger(side) && side >= 0 && side < 2 ** 31)) {
    throw new InvalidArgument(`${name} is ${JSON.stringify(wanted)}; give a width and a height in pixels, or one number for both`);
  }
  return { width: sides[0]!, height: sides[1]! };
}

function numbers(name: string, wanted: number | readonly number[] | undefined): number[] {
  const values = typeof wanted === "number" ? [wanted] : [...(wanted ?? [])];
  if (!values.every((value) => typeof value === "number")) throw new InvalidArgument(`${name} is ${JSON.stringify(wanted)}; give numbers`);
  return values;
}

function colour(wanted: DecodeOptions["background"]): { red: number; green: number; blue: number } | null {
  if (wanted === undefined) return null;
  if (wanted.length !== 3 || !wanted.every((value) => Number.isInteger(value) && value >= 0 && value <= 255)) {
    throw new InvalidArgument(`background is ${JSON.stringify(wanted)}; give its red, green and blue from 0 to 255`);
  }
  return { red: wanted[0], green: wanted[1], blue: wanted[2] };
}
