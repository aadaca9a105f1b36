// images-go decodes the image in the body, like ../images.
package main

import (
	"encoding/json"
	"net/http"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

func init() { weirhttp.Serve(weirhttp.HandlerFunc(handle)) }

func main() {}

func handle(w http.ResponseWriter, r *http.Request) error {
	image, err := weir.TakeBodyAsTensor(r.Body, weir.Uint8, weir.Any)
	if err != nil {
		return err
	}
	var options weir.ImageOptions
	switch r.URL.Path {
	case "/info":
		info, err := weir.InspectImage(image)
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(map[string]any{"format": info.Format, "width": info.Width, "height": info.Height})
	case "/pixels":
		options = weir.ImageOptions{Type: weir.Uint8, Layout: weir.NHWC}
	case "/imagenet":
		options = weir.ImageOptions{
			Resize: weir.Size{Width: 256, Height: 256},
			Fit:    weir.Outside,
			Crop:   weir.Size{Width: 224, Height: 224},
			Mean:   []float32{0.485, 0.456, 0.406},
			Std:    []float32{0.229, 0.224, 0.225},
		}
	default:
		return weir.StatusErrorf(http.StatusNotFound, "POST an image to /info, /pixels or /imagenet")
	}
	tensor, err := weir.DecodeImage(image, options)
	if err != nil {
		return err
	}
	return weir.ReplyWithTensor(w, tensor)
}
