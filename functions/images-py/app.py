"""Decodes the image in the body, like ../images."""

from weir import StatusError, images
from weir.http import Request, http_function


@http_function
def handle(request: Request) -> object:
    image = request.tensor("uint8")
    match request.path:
        case "/info":
            return images.info(image)._asdict()
        case "/pixels":
            return images.decode(image, element_type="uint8", layout="nhwc")
        case "/imagenet":
            means, deviations = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
            return images.decode(image, resize=256, fit="outside", crop=224, mean=means, std=deviations)
        case _:
            raise StatusError(404, "POST an image to /info, /pixels or /imagenet")
