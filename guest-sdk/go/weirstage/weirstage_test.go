//go:build !wasip1

package weirstage

import (
	"errors"
	"fmt"
	"io"
	"testing"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

func TestCallerSeesOnlyWeirErrors(t *testing.T) {
	code, message, all := shown(fmt.Errorf("x: %w", weir.Errorf(weir.InvalidArgument, "too long")))
	if code != weir.InvalidArgument || message != "x: too long" || !all {
		t.Error(code, message, all)
	}
	code, message, all = shown(&weir.Error{Code: weir.InvalidArgument, Status: 500, Message: "no input z"})
	if code != weir.Internal || message != "no input z" || !all {
		t.Error(code, message, all)
	}
	code, message, all = shown(io.EOF)
	if code != weir.Internal || message == "EOF" || all {
		t.Error(code, message, all)
	}
}

func TestDuplicateOutputTensorIsRejected(t *testing.T) {
	x, err := weir.New([]int32{1})
	if err != nil {
		t.Fatal(err)
	}
	for _, outputs := range []weir.Tensors{{"a": x, "b": x}, {"a": nil}} {
		give := func(weir.Tensors) (weir.Tensors, error) { return outputs, nil }
		if _, err := run(give, nil); !errors.Is(err, weir.Internal) {
			t.Error(err)
		}
	}
	if _, err := run(nil, nil); err == nil {
		t.Error("nothing ran")
	}
}
