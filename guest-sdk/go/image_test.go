package weir

import (
	"bytes"
	"errors"
	"image/color"
	"testing"
)

func TestImageIsDecodedByTheTest(t *testing.T) {
	png := []byte("\x89PNG and more")
	encoded, err := New(png)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeImage(encoded, ImageOptions{}); !errors.Is(err, Unavailable) {
		t.Fatalf("there is no decoder yet: %v", err)
	}
	var seen ImageOptions
	ProvideImages(func(data []byte, options ImageOptions) (*Tensor, error) {
		if !bytes.Equal(data, png) {
			t.Errorf("the decoder gets %q", data)
		}
		seen = options
		return New(make([]float32, 12), 1, 3, 2, 2)
	})
	defer ProvideImages(nil)
	made, err := DecodeImage(encoded, ImageOptions{Resize: Size{2, 2}, Fit: Cover, Background: color.White})
	if err != nil || len(made.Shape()) != 4 {
		t.Fatalf("%v, %v", made, err)
	}
	if seen.Type != FP32 || seen.Fit != Cover || seen.Resize != (Size{2, 2}) {
		t.Errorf("%+v", seen)
	}
	info, err := InspectImage(encoded)
	if err != nil || info != (ImageInfo{"png", Size{2, 2}}) {
		t.Errorf("%v, %v", info, err)
	}
}

func TestInvalidImageOptionsAreRejected(t *testing.T) {
	encoded, err := New([]byte("\x89PNG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []ImageOptions{
		{Resize: Size{0, 2}}, {Crop: Size{-1, 2}}, {Fit: 9}, {Filter: 9}, {Channels: 9}, {Layout: 9},
	} {
		if _, err := DecodeImage(encoded, options); !errors.Is(err, InvalidArgument) {
			t.Errorf("%+v: %v", options, err)
		}
	}
}
