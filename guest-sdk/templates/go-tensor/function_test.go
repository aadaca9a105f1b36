package main

// Run with `go test`; needs no node. `weir build` makes Go available in .weir/toolchain/bin.

import (
	"slices"
	"testing"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

func TestValuesComeOutBetween0And1(t *testing.T) {
	x, err := weir.New([]float32{1, 2, 5})
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := run(weir.Tensors{"x": x})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := weir.Values[float32](outputs["y"]); !slices.Equal(got, []float32{0, 0.25, 1}) {
		t.Errorf("got %v", got)
	}
}
