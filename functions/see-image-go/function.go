// see-image-go maps a picture, [height, width, 3] of bytes, to the output of the model channels,
// which gets the picture normalised as for ImageNet, in fp32 planes.
package main

import (
	"fmt"
	"strings"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirstage"
)

var (
	means      = [3]float32{0.485, 0.456, 0.406}
	deviations = [3]float32{0.229, 0.224, 0.225}
)

func init() { weirstage.Serve(run) }

func main() {}

func run(inputs weir.Tensors) (weir.Tensors, error) {
	image, err := inputs.Get("image")
	if err != nil {
		return nil, err
	}
	shape := image.Shape()
	if len(shape) != 3 || shape[2] != 3 {
		is := strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
		return nil, weir.Errorf(weir.InvalidArgument, "the image has to be [height, width, 3] and is %s", is)
	}
	pixels, err := weir.Values[uint8](image)
	if err != nil {
		return nil, err
	}
	planes, err := weir.New(normalised(pixels), 1, 3, shape[0], shape[1])
	if err != nil {
		return nil, err
	}
	model, err := weir.Open("channels")
	if err != nil {
		return nil, err
	}
	return model.Infer(weir.Tensors{"image": planes})
}

func normalised(pixels []uint8) []float32 {
	size := len(pixels) / 3
	planes := make([]float32, 3*size)
	for at, value := range pixels {
		channel := at % 3
		planes[channel*size+at/3] = (float32(value)/255 - means[channel]) / deviations[channel]
	}
	return planes
}
