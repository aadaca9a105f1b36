"""Images: JPEG, PNG and WebP, decoded, resized and normalised on the node, straight into tensors.

The function needs neither Pillow nor numpy, and the pixels do not enter its memory::

    from weir import ElementType, Model, images
    from weir.http import Request, http_function

    @http_function
    def classify(request: Request):
        image = images.decode(
            request.tensor(ElementType.UINT8),
            resize=256,
            fit="outside",
            crop=224,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
        )
        return {"scores": Model.open("squeezenet").infer({"data": image}).only().tolist()}

An image that is damaged or too large is an :class:`~weir.InvalidArgument`, which becomes a response
with status 400.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from weir import elements
from weir._wit import image as raw
from weir.elements import ElementType
from weir.errors import InvalidArgument, from_node
from weir.tensors import Tensor

__all__ = ["Info", "decode", "info"]

Fit = Literal["fill", "cover", "contain", "inside", "outside"]
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]


class Info(NamedTuple):
    """Format and size of an encoded image."""

    #: ``"jpeg"``, ``"png"`` or ``"webp"``.
    format: str
    #: Columns of the image as it is displayed, with its EXIF orientation applied.
    width: int
    #: Rows.
    height: int


def info(encoded: bytes | Tensor) -> Info:
    """Reads the header of an encoded image, without decoding it.

    Raises :class:`~weir.InvalidArgument` for anything but a JPEG, PNG or WebP image.
    """
    with _encoded(encoded) as tensor, from_node():
        found = raw.inspect(tensor._raw)
    return Info(found.format.name.lower(), found.width, found.height)


def decode(
    encoded: bytes | Tensor,
    *,
    resize: int | tuple[int, int] | None = None,
    fit: Fit = "fill",
    filter: Filter = "bilinear",
    crop: int | tuple[int, int] | None = None,
    channels: Literal["rgb", "bgr", "grey"] = "rgb",
    layout: Literal["nchw", "nhwc"] = "nchw",
    element_type: ElementType | str = "fp32",
    scale: float | None = None,
    mean: float | Sequence[float] = (),
    std: float | Sequence[float] = (),
    background: tuple[int, int, int] | None = None,
    ignore_orientation: bool = False,
) -> Tensor:
    """Decodes an image into a tensor of four dimensions, which a model can take as it is.

    ``encoded`` is the bytes of the image, or a ``uint8`` tensor with them:
    ``request.tensor("uint8")`` makes one of the body, without a copy through the function. The node
    takes these steps, in this order:

    - It applies the image's EXIF orientation, unless ``ignore_orientation`` is set.
    - It ignores transparency, or puts the image on a ``background`` of red, green and blue.
    - It converts the ``channels``.
    - It resizes the image to ``resize``, a width and height, or one number for both. ``fit`` is
      ``fill`` for exactly that size; ``cover`` for the centre of the smallest image that covers it;
      ``contain`` for the largest image within it, with margins in the colour of the background, or
      black; ``inside`` for the same without margins; or ``outside`` for the smallest image that
      covers it, uncropped. ``filter`` is ``bilinear``, ``bicubic``, ``lanczos`` (these average when
      they shrink an image, as Pillow does) or ``nearest``.
    - It keeps the centre of the size ``crop``.
    - It normalises each pixel, from 0 to 255: ``(pixel * scale - mean) / std``, by default to 0 to
      1. ``mean`` and ``std`` have one value per channel, or one for all. The ``element_type`` is
      ``fp32``, ``fp16`` or ``bf16``, or ``uint8`` for pixels as they are.

    The shape is ``(1, channels, height, width)``, or ``(1, height, width, channels)`` with the
    layout ``nhwc``. Raises :class:`~weir.InvalidArgument` for an image that is damaged or exceeds
    the node's limits, and :class:`~weir.ResourceExhausted` above the function's limit of tensor
    bytes.
    """
    size = _size("resize", resize)
    options = raw.Options(
        resize=None if size is None else raw.Resize(size, _case(raw.Fit, "fit", fit), _case(raw.Filter, "filter", filter)),
        crop=_size("crop", crop),
        channels=_case(raw.Channels, "channels", channels),
        layout=_case(raw.Layout, "layout", layout),
        element_type=elements.of(element_type),
        scale=None if scale is None else float(scale),
        mean=_numbers(mean),
        std=_numbers(std),
        background=_colour(background),
        ignore_orientation=bool(ignore_orientation),
    )
    with _encoded(encoded) as tensor, from_node():
        return Tensor._of(raw.decode(tensor._raw, options))


class _Borrowed:
    """A tensor of the caller, which stays open."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> Tensor:
        return self._tensor

    def __exit__(self, *failure: object) -> None:
        pass


def _encoded(encoded: bytes | Tensor) -> Tensor | _Borrowed:
    """The tensor of an encoded image, for a ``with`` block that closes it only if it is new."""
    if isinstance(encoded, Tensor):
        return _Borrowed(encoded)
    try:
        data = memoryview(encoded).cast("B")
    except TypeError:
        raise TypeError(f"an encoded image is bytes or a Tensor, and not of {type(encoded).__name__}") from None
    return Tensor.from_bytes(ElementType.UINT8, (len(data),), data)


def _case(kind: type[Enum], name: str, wanted: str) -> Enum:
    found = kind.__members__.get(wanted.upper()) if isinstance(wanted, str) else None
    if found is None:
        cases = ", ".join(case.lower() for case in kind.__members__)
        raise InvalidArgument(f"{name} is {wanted!r}; it can be: {cases}")
    return found


def _size(name: str, wanted: int | tuple[int, int] | None) -> object:
    if wanted is None:
        return None
    sides = tuple(wanted) if isinstance(wanted, (tuple, list)) else (wanted, wanted)
    if len(sides) != 2 or not all(isinstance(side, int) and 0 <= side < 1 << 32 for side in sides):
        raise InvalidArgument(f"{name} is {wanted!r}; give a width and a height in pixels, or one number for both")
    return raw.Size(*sides)


def _numbers(values: float | Sequence[float]) -> list[float]:
    return [float(values)] if isinstance(values, (int, float)) else [float(value) for value in values]


def _colour(wanted: tuple[int, int, int] | None) -> object:
    if wanted is None:
        return None
    if len(wanted) != 3 or not all(isinstance(value, int) and 0 <= value <= 255 for value in wanted):
        raise InvalidArgument(f"background is {wanted!r}; give its red, green and blue from 0 to 255")
    return raw.Colour(*wanted)
