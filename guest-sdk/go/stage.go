package weir

import "errors"

// A Stage maps tensors to tensors.
type Stage func(inputs Tensors) (Tensors, error)

var stage Stage

// ServeTensors makes the component a tensor function, which can be called like a model. Call it in an init function.
//
// An [Error] that run returns is what its caller gets, and its log says the rest of any other error.
func ServeTensors(run Stage) { stage = run }

// runStage runs a stage as the node would.
func runStage(run Stage, inputs Tensors) (Tensors, error) {
	if run == nil {
		return nil, Errorf(Internal, "the function serves nothing: call weir.ServeTensors in an init function")
	}
	outputs, err := run(inputs)
	if err != nil {
		return nil, err
	}
	seen := make(map[nodeTensor]string, len(outputs))
	for _, name := range outputs.names() {
		output := outputs[name]
		if output == nil {
			return nil, Errorf(Internal, "the output %s is nil", name)
		}
		// The caller owns them from here on, and a tensor has one owner.
		if other, is := seen[output.on]; is {
			return nil, Errorf(Internal, "the outputs %s and %s are one tensor", other, name)
		}
		seen[output.on] = name
	}
	return outputs, nil
}

// shown gives what the caller gets to see of an error, and whether it is all there is.
func shown(err error) (answer *Error, all bool) {
	if errors.As(err, &answer) {
		return &Error{Code: answer.Code, Status: answer.Status, Message: err.Error()}, true
	}
	return &Error{Code: Internal, Status: 500, Message: "the function failed; its log says why"}, false
}
