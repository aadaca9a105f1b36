/** In-memory decoder of images with the interface of componentize-qjs's bindings, provided by tests. */

import { refused, type Tensor } from "./tensors.ts";

/** The decoder; `weir/testing` sets it. */
export const DECODER: { run?: (encoded: Uint8Array, options: unknown) => Tensor } = {};

export function decode(encoded: Tensor, options: unknown): Tensor {
  if (DECODER.run === undefined) throw refused("unavailable", "a node decodes images; decoder() of weir/testing provides a decoder");
  return DECODER.run(encoded.read(0, encoded.byteLength()), options);
}

const SIGNATURES = { jpeg: [0xff, 0xd8, 0xff], png: [0x89, 0x50, 0x4e, 0x47], webp: [0x52, 0x49, 0x46, 0x46] };

export function inspect(encoded: Tensor): { format: string; width: number; height: number } {
  const begin = encoded.read(0, Math.min(encoded.byteLength(), 4));
  const found = Object.entries(SIGNATURES).find(([, signature]) => signature.every((byte, at) => begin[at] === byte));
  if (found === undefined) throw refused("invalid-argument", "the data is no JPEG, PNG or WebP image");
  const [height, width] = decode(encoded, null).shape().slice(-2);
  return { format: found[0], width: width!, height: height! };
}
