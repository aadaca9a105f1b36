"""Writes `golden.json`: images, options, and the tensors that Pillow and numpy make of them. And the
images of `tests/fixtures/images`, whose pixels are those of `picture.rgb`, row by row.

    pip install pillow==13.0.0 numpy && python3 generate.py

Formats without loss must give equal tensors. The decoders of JPEG and lossy WebP may differ by a few
levels.
"""

import base64
import io
import json
import pathlib

import numpy as np
from PIL import Image, ImageOps

FOLDER = pathlib.Path(__file__).parent
FILTERS = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def picture(width, height):
    """Gradients with an edge and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x // max(width - 1, 1)
    green = 255 * y // max(height - 1, 1)
    blue = 128 + 100 * np.sin(x / 3.0) * np.cos(y / 4.0)
    pixels = np.stack([red, green, blue], 2).astype(np.float64)
    pixels[height // 3 :, width // 2 :] = 255 - pixels[height // 3 :, width // 2 :]
    pixels += np.random.default_rng(7).integers(-6, 7, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def oriented(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif.tobytes()


def half_even(length):
    return int(round(length / 2.0))


def expected(data, options):
    """The tensor, by the documented rules."""
    image = Image.open(io.BytesIO(data))
    image.seek(0)
    if not options.get("ignore_orientation"):
        image = ImageOps.exif_transpose(image)
    channels = options.get("channels", "rgb")
    background = options.get("background")
    if background is not None:
        image = Image.alpha_composite(Image.new("RGBA", image.size, (*background, 255)), image.convert("RGBA"))
    image = image.convert("RGB")
    if channels == "grey":
        image = image.convert("L")
    width, height = image.size
    if "resize" in options:
        wanted_width, wanted_height, fit, name = options["resize"]
        size = wanted_width, wanted_height
        if fit in ("outside", "cover"):
            if wanted_width * height >= wanted_height * width:
                size = wanted_width, int(wanted_width * height / width)
            else:
                size = int(wanted_height * width / height), wanted_height
        elif fit in ("inside", "contain"):
            scale = min(wanted_width / width, wanted_height / height)
            size = max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))
        image = image.resize(size, FILTERS[name])
        if fit == "cover":
            left, top = half_even(size[0] - wanted_width), half_even(size[1] - wanted_height)
            image = image.crop((left, top, left + wanted_width, top + wanted_height))
        elif fit == "contain":
            canvas = Image.new("RGB", (wanted_width, wanted_height), tuple(background or (0, 0, 0)))
            canvas = canvas.convert(image.mode)
            canvas.paste(image, ((wanted_width - size[0]) // 2, (wanted_height - size[1]) // 2))
            image = canvas
    if "crop" in options:
        wanted_width, wanted_height = options["crop"]
        left, top = half_even(image.size[0] - wanted_width), half_even(image.size[1] - wanted_height)
        image = image.crop((left, top, left + wanted_width, top + wanted_height))
    pixels = np.asarray(image)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    pixels = pixels[:, :, ::-1] if channels == "bgr" else pixels
    kind = options.get("element_type", "uint8")
    if kind != "uint8":
        scaled = pixels.astype(np.float32)
        scaled = scaled / np.float32(255) if "scale" not in options else scaled * np.float32(options["scale"])
        scaled -= np.array(options.get("mean", [0]), np.float32)
        scaled /= np.array(options.get("std", [1]), np.float32)
        pixels = scaled.astype({"fp32": np.float32, "fp16": np.float16}[kind])
    if options.get("layout", "nchw") == "nchw":
        pixels = pixels.transpose(2, 0, 1)
    return pixels[None]


def images():
    rgb = picture(37, 23)
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, 37).astype(np.uint8), (23, 1)))
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    grey = rgb.convert("L")
    big = picture(64, 48)
    yield "png-rgb", encoded(rgb, "png"), 0
    yield "png-rgba", encoded(rgba, "png"), 0
    yield "png-grey", encoded(grey, "png"), 0
    yield "png-grey-alpha", encoded(Image.merge("LA", (grey, alpha)), "png"), 0
    yield "png-palette", encoded(rgb.quantize(16), "png"), 0
    yield "png-bits", encoded(grey.point(lambda value: 255 * (value > 127), "1"), "png"), 0
    yield "png-oriented", encoded(rgb, "png", exif=oriented(6)), 0
    yield "webp-lossless", encoded(rgb, "webp", lossless=True), 0
    yield "webp-lossless-alpha", encoded(rgba, "webp", lossless=True, exact=True), 0
    yield "webp-oriented", encoded(rgb, "webp", lossless=True, exif=oriented(8)), 0
    yield "webp-animated", encoded(rgb, "webp", lossless=True, save_all=True, append_images=[picture(37, 23).rotate(180)]), 0
    yield "webp-lossy", encoded(big, "webp", quality=80), 12
    yield "webp-lossy-alpha", encoded(rgba, "webp", quality=90, exact=True), 24
    yield "jpeg", encoded(big, "jpeg", quality=90, subsampling=0), 4
    yield "jpeg-subsampled", encoded(big, "jpeg", quality=90, subsampling=2), 24
    yield "jpeg-progressive", encoded(big, "jpeg", quality=90, progressive=True, subsampling=0), 4
    yield "jpeg-grey", encoded(big.convert("L"), "jpeg", quality=90), 3
    yield "jpeg-cmyk", encoded(big.convert("CMYK"), "jpeg", quality=95), 12
    for tag in range(2, 9):
        yield f"jpeg-oriented-{tag}", encoded(rgb, "jpeg", quality=90, subsampling=0, exif=oriented(tag)), 4


def main():
    given = {name: (data, tolerance) for name, data, tolerance in images()}
    cases = [(name, {}) for name in given]
    for name in ("png-rgb", "png-grey"):
        for fit in ("fill", "cover", "contain", "inside", "outside"):
            cases.append((name, {"resize": [16, 12, fit, "bilinear"]}))
        cases += [(name, {"resize": [16, 20, "fill", kind]}) for kind in FILTERS]
        cases += [(name, {"resize": [61, 41, "fill", kind]}) for kind in FILTERS]
    cases += [
        ("png-rgb", {"channels": "grey"}),
        ("png-rgb", {"channels": "bgr", "layout": "nhwc"}),
        ("png-rgb", {"channels": "grey", "resize": [16, 16, "contain", "bilinear"], "background": [200, 30, 90]}),
        ("png-rgb", {"resize": [16, 16, "contain", "bicubic"], "background": [114, 114, 114]}),
        ("png-rgb", {"resize": [20, 20, "outside", "bilinear"], "crop": [16, 16]}),
        ("png-rgb", {"resize": [20, 20, "contain", "bilinear"], "crop": [15, 14]}),
        ("png-rgb", {"crop": [10, 11], "element_type": "fp32", "layout": "nhwc"}),
        ("png-rgb", {"element_type": "fp32", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}),
        ("png-rgb", {"element_type": "fp16", "mean": [0.5], "std": [0.5], "resize": [8, 8, "fill", "bilinear"]}),
        ("png-rgb", {"element_type": "fp32", "scale": 1.0, "mean": [127.5], "std": [128.0], "channels": "bgr"}),
        ("png-rgba", {"background": [255, 255, 255]}),
        ("png-rgba", {"background": [10, 200, 30], "channels": "grey", "resize": [9, 9, "fill", "bilinear"]}),
        ("png-grey-alpha", {"background": [255, 0, 0]}),
        ("png-oriented", {"ignore_orientation": True}),
        ("png-oriented", {"resize": [10, 10, "cover", "bilinear"]}),
        ("webp-lossless-alpha", {"background": [255, 255, 255]}),
    ]
    written = {
        "images": {name: base64.b64encode(data).decode() for name, (data, _) in given.items()},
        "cases": [],
    }
    for name, options in cases:
        data, tolerance = given[name]
        tensor = expected(data, options)
        case = {"image": name, "options": options, "shape": list(tensor.shape), "tolerance": tolerance}
        case["tensor"] = base64.b64encode(np.ascontiguousarray(tensor).tobytes()).decode()
        written["cases"].append(case)
    (FOLDER / "golden.json").write_text(json.dumps(written, separators=(",", ":")).replace('{"image"', '\n{"image"') + "\n")
    fixtures = FOLDER / "../../../tests/fixtures/images"
    picture_of_tests = picture(37, 23)
    (fixtures / "picture.png").write_bytes(encoded(picture_of_tests, "png"))
    (fixtures / "picture.webp").write_bytes(encoded(picture_of_tests, "webp", lossless=True))
    turned = picture_of_tests.transpose(Image.Transpose.ROTATE_90)
    (fixtures / "turned.jpg").write_bytes(encoded(turned, "jpeg", quality=95, subsampling=0, exif=oriented(6)))
    (fixtures / "picture.rgb").write_bytes(picture_of_tests.tobytes())
    (FOLDER / "pixel.png").write_bytes(encoded(Image.new("RGB", (1, 1), (255, 128, 0)), "png"))


main()
