"""Maps a picture, [height, width, 3] of bytes, to the output of the model `channels`, which gets
the picture normalised as for ImageNet, in fp32 planes.
"""

from array import array

from weir import ElementType, InvalidArgument, Model, Tensor, Tensors, tensor_function

MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Normalised value of each byte, computed once: the tables are in the snapshot that the component
# starts from.
TABLES = [[(byte / 255 - m) / d for byte in range(256)] for m, d in zip(MEANS, DEVIATIONS)]


@tensor_function
def run(inputs: Tensors) -> Tensors:
    image = inputs["image"]
    if len(image.shape) != 3 or image.shape[2] != 3:
        raise InvalidArgument(f"the image has to be [height, width, 3] and is {list(image.shape)}")
    pixels, planes = image.array(ElementType.UINT8), array("f")
    for channel, table in enumerate(TABLES):
        planes.extend(map(table.__getitem__, pixels[channel::3]))
    return Model.open("channels").infer({"image": Tensor(planes, (1, 3, *image.shape[:2]))})
