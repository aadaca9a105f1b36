"""Tests of the arguments and errors of image decodings. A node decodes; here, a test does."""

import unittest

from weir import ElementType, InvalidArgument, Tensor, Unavailable, images, testing
from weir._wit import image as raw

PNG = b"\x89PNG\r\n\x1a\n and more"


class Recorded:
    """Stands for the node: keeps the bytes and options of its last call."""

    def __init__(self):
        self.options = None
        self.encoded = None

    def decode(self, encoded, options):
        self.encoded, self.options = encoded.read(0, encoded.byte_length()), options
        return Tensor(b"\0" * 12, (1, 3, 2, 2))._raw


class ImageTests(unittest.TestCase):
    def setUp(self):
        self.node = Recorded()
        before, raw.decode = raw.decode, self.node.decode
        self.addCleanup(setattr, raw, "decode", before)

    def test_defaults_are_those_of_the_node(self):
        self.assertEqual(images.decode(PNG).shape, (1, 3, 2, 2))
        options = self.node.options
        self.assertEqual(self.node.encoded, PNG)
        self.assertEqual((options.resize, options.crop, options.scale, options.background), (None,) * 4)
        self.assertEqual((options.mean, options.std, options.ignore_orientation), ([], [], False))
        self.assertEqual((options.channels, options.layout), (raw.Channels.RGB, raw.Layout.NCHW))
        self.assertEqual(options.element_type, ElementType.FP32)

    def test_arguments_become_options(self):
        encoded = Tensor(PNG)
        images.decode(
            encoded,
            resize=(256, 128),
            fit="outside",
            filter="bicubic",
            crop=224,
            channels="bgr",
            layout="nhwc",
            element_type="fp16",
            scale=1,
            mean=0.5,
            std=(0.1, 0.2, 0.3),
            background=(1, 2, 3),
            ignore_orientation=True,
        )
        options = self.node.options
        resize = options.resize
        self.assertEqual((resize.to.width, resize.to.height, resize.fit, resize.filter), (256, 128, raw.Fit.OUTSIDE, raw.Filter.BICUBIC))
        self.assertEqual((options.crop.width, options.crop.height), (224, 224))
        self.assertEqual((options.channels, options.layout), (raw.Channels.BGR, raw.Layout.NHWC))
        self.assertEqual((options.element_type, options.scale), (ElementType.FP16, 1.0))
        self.assertEqual((options.mean, options.std), ([0.5], [0.1, 0.2, 0.3]))
        colour = options.background
        self.assertEqual((colour.red, colour.green, colour.blue, options.ignore_orientation), (1, 2, 3, True))
        self.assertEqual(encoded.shape, (len(PNG),), "the caller's tensor stays open")

    def test_invalid_arguments_are_named(self):
        for wrong, text in [
            ({"fit": "stretch"}, "fit is 'stretch'; it can be: fill, cover"),
            ({"resize": 1.5}, "resize is 1.5"),
            ({"resize": (1, 2, 3)}, "give a width and a height"),
            ({"crop": -1}, "crop is -1"),
            ({"channels": "rgba"}, "channels is 'rgba'"),
            ({"background": (0, 0, 256)}, "from 0 to 255"),
            ({"element_type": "float"}, "no element type"),
        ]:
            arguments = {"resize": 4} | wrong
            with self.assertRaisesRegex((InvalidArgument, TypeError), text):
                images.decode(PNG, **arguments)
        with self.assertRaisesRegex(TypeError, "bytes or a Tensor, and not of str"):
            images.decode("photo.png")


class TestingTests(unittest.TestCase):
    def test_provided_decoder_is_called(self):
        with self.assertRaisesRegex(Unavailable, "weir.testing.images"):
            images.decode(PNG)
        with testing.images(lambda encoded: Tensor([float(len(encoded))] * 12, (1, 3, 2, 2))):
            self.assertEqual(images.decode(PNG).tolist()[0][0][0][0], len(PNG))
            self.assertEqual(images.info(PNG), ("png", 2, 2))
            with self.assertRaises(InvalidArgument):
                images.info(b"GIF89a")


if __name__ == "__main__":
    unittest.main()
