// {{ name }} maps tensors to tensors: it scales x into 0 to 1 as y. Call it with
//
//	curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
package main

import (
	"slices"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirstage"
)

// The node calls the handler; main stays empty.
func init() { weirstage.Serve(run) }

func main() {}

func run(inputs weir.Tensors) (weir.Tensors, error) {
	x, err := inputs.Get("x")
	if err != nil {
		return nil, err
	}
	values, err := weir.Values[float32](x)
	if err != nil {
		return nil, err
	}
	y, err := weir.New(scale(values), x.Shape()...)
	if err != nil {
		return nil, err
	}
	return weir.Tensors{"y": y}, nil
}

func scale(values []float32) []float32 {
	scaled := make([]float32, len(values))
	if len(values) == 0 {
		return scaled
	}
	low, high := slices.Min(values), slices.Max(values)
	for at, value := range values {
		if high > low {
			scaled[at] = (value - low) / (high - low)
		}
	}
	return scaled
}
