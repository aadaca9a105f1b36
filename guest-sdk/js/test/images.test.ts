import assert from "node:assert/strict";
import { test } from "node:test";
import { images, InvalidArgument, Tensor, Unavailable } from "../src/index.ts";
import { decoder } from "../src/testing.ts";

const PNG = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 1, 2, 3);
const made = () => Tensor.from(new Float32Array(12), [1, 3, 2, 2]);

test("options have the node's format", () => {
  const seen: unknown[] = [];
  using _ = decoder((encoded, options) => {
    seen.push([...encoded], options);
    return made();
  });
  assert.deepEqual(images.decode(PNG).shape, [1, 3, 2, 2]);
  const usual = { resize: null, crop: null, channels: "rgb", layout: "nchw", elementType: "fp32", scale: null, mean: [], std: [] };
  assert.deepEqual(seen.splice(0), [[...PNG], { ...usual, background: null, ignoreOrientation: false }]);
  const encoded = Tensor.from(PNG);
  images.decode(encoded, {
    resize: [256, 128], fit: "outside", filter: "bicubic", crop: 224, channels: "bgr", layout: "nhwc", type: "fp16",
    scale: 1, mean: 0.5, std: [0.1, 0.2, 0.3], background: [1, 2, 3], ignoreOrientation: true,
  });
  assert.deepEqual(seen[1], {
    resize: { to: { width: 256, height: 128 }, fit: "outside", filter: "bicubic" },
    crop: { width: 224, height: 224 }, channels: "bgr", layout: "nhwc", elementType: "fp16",
    scale: 1, mean: [0.5], std: [0.1, 0.2, 0.3], background: { red: 1, green: 2, blue: 3 }, ignoreOrientation: true,
  });
  assert.deepEqual(encoded.shape, [PNG.length], "the caller's tensor stays open");
  assert.deepEqual(images.info(PNG), { format: "png", width: 2, height: 2 });
  assert.throws(() => images.info(Uint8Array.of(1, 2)), InvalidArgument);
});

test("invalid options are named", () => {
  for (const [options, text] of [
    [{ resize: 4, fit: "stretch" }, /fit is "stretch"; it can be: fill, cover/],
    [{ resize: 1.5 }, /resize is 1.5/],
    [{ crop: [1, 2, 3] }, /give a width and a height/],
    [{ channels: "rgba" }, /channels is "rgba"/],
    [{ type: "int8" }, /type is "int8"; it can be: uint8/],
    [{ mean: ["a"] }, /give numbers/],
    [{ background: [0, 0, 256] }, /from 0 to 255/],
  ] as [images.DecodeOptions, RegExp][]) {
    assert.throws(() => images.decode(PNG, options), (error) => error instanceof InvalidArgument && text.test(error.message));
  }
  assert.throws(() => images.decode("photo.png" as never), /a Uint8Array or a Tensor, and not a string/);
  assert.throws(() => images.decode(PNG), Unavailable);
});
