/** Decodes the image in the body, like `../images`. */

import { images, StatusError } from "weir";
import { type Answer, httpFunction, type Request, Response } from "weir/http";

export function handle(request: Request): Answer {
  const image = request.tensor("uint8");
  switch (request.path) {
    case "/info":
      return images.info(image);
    case "/pixels":
      return new Response(images.decode(image, { type: "uint8", layout: "nhwc" }));
    case "/imagenet": {
      const options = { resize: 256, fit: "outside", crop: 224, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] } as const;
      return new Response(images.decode(image, options));
    }
    default:
      throw new StatusError(404, "POST an image to /info, /pixels or /imagenet");
  }
}

export const handler = httpFunction(handle);
