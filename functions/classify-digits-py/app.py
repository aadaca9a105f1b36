"""Recognises one handwritten digit: takes a PNG or rows of grey, returns JSON. `../classify-digits`
is the same function in Rust, with the same answers.
"""

import json
from math import floor

from weir import Error, Model, StatusError, Tensor
from weir.http import Request, Response, http_function

from picture import Picture, PictureError, TooLarge, fp32
from prepare import SIDE, prepare

USAGE = """\
classify-digits reads one handwritten digit.

  curl --data-binary @3.png URL                                 a PNG of any size and colour
  curl -d '{"pixels": [[0, 9, 3, ...], ...]}' URL               rows of grey, of any scale and size
"""


@http_function
def handle(request: Request) -> Response:
    try:
        return answer(request)
    except Error as error:
        return Response({"error": str(error)}, error.status)


def answer(request: Request) -> Response:
    if request.path not in ("/", "/classify"):
        raise StatusError(404, "there is nothing at this path; send the picture to /")
    if request.method in ("GET", "HEAD"):
        return Response(USAGE)
    if request.method not in ("POST", "PUT"):
        raise StatusError(405, "use POST with a picture, or GET for help")
    cells = prepare(picture(request.body()))
    if cells is None:
        raise StatusError(422, "the picture is blank: there is no digit on it")
    found = probabilities(cells)
    digit = max(range(10), key=lambda digit: (found[digit], digit))
    readable = [rounded(value) for value in found]
    return Response({"digit": digit, "confidence": readable[digit], "probabilities": readable})


def rounded(probability: float) -> float:
    """Rounds to six decimals: further digits are noise, and hard to read."""
    return floor(fp32(probability * 1e6) + 0.5) / 1e6


def picture(body: bytes) -> Picture:
    """Detects the type of the body from its content."""
    try:
        if body.startswith(b"\x89PNG\r\n\x1a\n"):
            return Picture.from_png(body)
        if not body.strip():
            raise StatusError(400, 'the body is empty: send a PNG, or JSON like {"pixels": [[0, 1], [1, 0]]}')
        if not body.lstrip().startswith(b"{"):
            raise StatusError(415, "the body is neither a PNG nor a JSON object")
        return Picture.from_rows(rows(body))
    except TooLarge as error:
        raise StatusError(413, str(error)) from None
    except PictureError as error:
        raise StatusError(400, str(error)) from None


def rows(body: bytes) -> list[list[float]]:
    """The rows of `{"pixels": rows}`."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise PictureError(f"the JSON cannot be used: {error}") from None
    match value:
        case {"pixels": [*rows], **rest} if not rest and all(map(is_row, rows)):
            return rows
    raise PictureError("the JSON cannot be used: it is not of the form {\"pixels\": [[number, ...], ...]}")


def is_row(row: object) -> bool:
    numbers = (int, float)
    return isinstance(row, list) and all(isinstance(x, numbers) and not isinstance(x, bool) for x in row)


def probabilities(cells: list[float]) -> list[float]:
    """Probability of each digit from 0 to 9."""
    try:
        image = Tensor(cells, (1, 1, SIDE, SIDE))
        return Model.open("digits").infer({"image": image})["probabilities"].array().tolist()
    except Error as error:
        # The function chooses the model's input, so a rejected input is not the client's fault.
        raise StatusError(max(error.status, 500), f"the model `digits` cannot be run: {error}") from None
