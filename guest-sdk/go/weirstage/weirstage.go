// Package weirstage serves a function that maps tensors to tensors, which callers can run like a
// model.
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
// A panic in any goroutine ends the call: the log gets the panic with its stack trace.
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
// The caller gets a [weir.Error] that run returns. For any other error the caller gets a generic
// internal error, and the log gets its text.
func Serve(run weir.Stage) { served = run }

// run runs a stage in the same way as the node.
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
		// The caller takes ownership of the outputs, so each tensor may appear only once.
		if other, is := seen[output]; is {
			return nil, weir.Errorf(weir.Internal, "the outputs %s and %s are one tensor", other, name)
		}
		seen[output] = name
	}
	return outputs, nil
}

// shown returns the code and message of an error for the caller, and whether the message is
// complete.
func shown(err error) (code weir.Code, message string, all bool) {
	if known := new(weir.Error); errors.As(err, &known) {
		if known.Code == weir.InvalidArgument && known.Status >= 500 {
			// Invalid arguments of a model run are not the caller's.
			return weir.Internal, err.Error(), true
		}
		return known.Code, err.Error(), true
	}
	return weir.Internal, "the function failed; its log says why", false
}
