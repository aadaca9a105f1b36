/**
 * Maps a picture, [height, width, 3] of bytes, to the output of the model `channels`, which gets
 * the picture normalised as for ImageNet, in fp32 planes.
 */

import { InvalidArgument, Model, Tensor, tensorFunction, type Tensors } from "weir";

const MEANS = [0.485, 0.456, 0.406];
const DEVIATIONS = [0.229, 0.224, 0.225];

export function run(inputs: Tensors): Tensors {
  const image = inputs.get("image");
  const [height = 0, width = 0, depth] = image.shape;
  if (image.shape.length !== 3 || depth !== 3) {
    throw new InvalidArgument(`the image has to be [height, width, 3] and is [${image.shape.join(", ")}]`);
  }
  const size = height * width;
  const planes = new Float32Array(3 * size);
  image.values("uint8").forEach((byte, at) => {
    const channel = at % 3;
    planes[channel * size + (at - channel) / 3] = (byte / 255 - MEANS[channel]!) / DEVIATIONS[channel]!;
  });
  return Model.open("channels").infer({ image: Tensor.from(planes, [1, 3, height, width]) });
}

export const stage = tensorFunction(run);
