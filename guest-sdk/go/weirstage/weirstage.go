// Package weirstage makes a function for Weir of one that maps tensors to tensors: it can be called like a model.
//
//	func init() { weirstage.Serve(run) }
//
//	func main() {}
//
//	func run(inputs weir.Tensors) (weir.Tensors, error) {
//		x, err := inputs.Get("x")
//		if err != nil {
//			return nil, err
//		}
//		model, err := weir.Open("digits")
//		if err != nil {
//			return nil, err
//		}
//		return model.Infer(weir.Tensors{"image": x})
//	}
//
// A panic, in any goroutine, ends the call: the log has it, and where it came from.
package weirstage

import (
	"errors"
	"maps"
	"slices"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

var served weir.Stage

// Serve makes the component a tensor function. Call it in an init function.
//
// A [weir.Error] that run returns is what its caller gets. Of any other error the caller learns only that there is one, and the log has its text.
func Serve(run weir.Stage) { served = run }

// run runs a stage as the node would.
func run(stage weir.Stage, inputs weir.Tensors) (weir.Tensors, error) {
	if stage == nil {
		return nil, weir.Errorf(weir.Internal, "the function serves nothing: call weirstage.Serve in an init function")
	}
	outputs, err := stage(inputs)
	if err != nil {
		return nil, err
	}
	seen := make(map[*weir.Tensor]string, len(outputs))
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		output := outputs[name]
		if output == nil {
			return nil, weir.Errorf(weir.Internal, "the output %s is nil", name)
		}
		// The caller owns them from here on, and a tensor has one owner.
		if other, is := seen[output]; is {
			return nil, weir.Errorf(weir.Internal, "the outputs %s and %s are one tensor", other, name)
		}
		seen[output] = name
	}
	return outputs, nil
}

// shown gives what the caller gets to see of an error, and whether it is all there is.
func shown(err error) (code weir.Code, message string, all bool) {
	if known := new(weir.Error); errors.As(err, &known) {
		return known.Code, err.Error(), true
	}
	return weir.Internal, "the function failed; its log says why", false
}
