//go:build !wasip1

package weir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
)

func double(inputs Tensors) (Tensors, error) {
	x, err := inputs.Get("x")
	if err != nil {
		return nil, err
	}
	values, err := Values[int32](x)
	if err != nil {
		return nil, err
	}
	for at := range values {
		values[at] *= 2
	}
	y, err := New(values)
	return Tensors{"y": y, "x": x}, err
}

func TestModelRuns(t *testing.T) {
	Provide("double", double)
	defer Provide("double", nil)
	x := must[*Tensor](t)(New([]int32{1, 2}))
	model := must[*Model](t)(Open("double"))
	if got := model.Describe().Name; got != "double" {
		t.Error(got)
	}
	outputs := must[Tensors](t)(model.Infer(Tensors{"x": x}, Outputs("y"), Deadline(time.Second), Priority(1)))
	if got := must[[]int32](t)(Values[int32](outputs["y"])); !slices.Equal(got, []int32{2, 4}) || len(outputs) != 1 {
		t.Error(got, outputs)
	}
	for _, refused := range [][]Option{{Outputs("z")}, {Deadline(0)}} {
		if _, err := model.Infer(Tensors{"x": x}, refused...); err == nil {
			t.Error("nothing was refused")
		}
	}
	var known *Error
	if _, err := model.Infer(Tensors{"x": nil}); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	if _, err := model.Infer(Tensors{"x": x}, Outputs("z")); !errors.As(err, &known) || known.Status != 500 {
		t.Error(err, known)
	}
}

func TestRunIsAwaitedOnceOrCancelled(t *testing.T) {
	Provide("double", double)
	defer Provide("double", nil)
	inputs := Tensors{"x": must[*Tensor](t)(New([]int32{1}))}
	model := must[*Model](t)(Open("double"))
	run := must[*Pending](t)(model.Submit(inputs))
	must[Tensors](t)(run.Wait())
	if _, err := run.Wait(); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	stopped := must[*Pending](t)(model.Submit(inputs))
	stopped.Cancel()
	if _, err := stopped.Wait(); !errors.Is(err, Cancelled) {
		t.Error(err)
	}
}

func TestErrorHasCodeStatusAndCause(t *testing.T) {
	_, err := Open("nothing")
	var known *Error
	if !errors.Is(err, NotFound) || !errors.As(fmt.Errorf("digits: %w", err), &known) || known.Status != 500 {
		t.Error(err)
	}
	err = StatusErrorf(422, "the body: %w", io.ErrUnexpectedEOF)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, InvalidArgument) || err.Error() != "the body: unexpected EOF" {
		t.Error(err)
	}
	if !errors.Is(StatusErrorf(503, "later"), Internal) || errors.Is(Errorf(Unavailable, "later"), Internal) {
		t.Error("the codes are others")
	}
}

func TestBodyLengthDeterminesTensorShape(t *testing.T) {
	for _, one := range []struct {
		shape, made []int
	}{{[]int{Any, 2}, []int{3, 2}}, {[]int{3, Any}, []int{3, 2}}, {[]int{6}, []int{6}}, {[]int{Any, Any}, nil}, {[]int{Any, 4}, nil}, {[]int{Any, 0}, nil}} {
		made, err := TakeBodyAsTensor(bytes.NewReader(make([]byte, 12)), Int16, one.shape...)
		if one.made == nil && err == nil || one.made != nil && (err != nil || !slices.Equal(made.Shape(), one.made)) {
			t.Error(one.shape, err)
		}
	}
	var answer bytes.Buffer
	if err := ReplyWithTensor(&answer, must[*Tensor](t)(New([]byte("abc")))); err != nil || answer.String() != "abc" {
		t.Error(err, answer.String())
	}
}

func TestObjectExistsUntilDeleted(t *testing.T) {
	value, err := New([]int32{1, 2})
	if err == nil {
		err = PutObject("kept", value, time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := GetObject("kept")
	if err != nil {
		t.Fatal(err)
	}
	if values, err := Values[int32](found); err != nil || !slices.Equal(values, []int32{1, 2}) {
		t.Error(values, err)
	}
	if err := PutObject("kept", value, time.Microsecond); err == nil {
		t.Error("an object for no time was kept")
	}
	if err := DeleteObject("kept"); err != nil {
		t.Error(err)
	}
	if _, err := GetObject("kept"); err == nil {
		t.Error("the object is still there")
	}
	if err := DeleteObject("kept"); err == nil {
		t.Error("the object was deleted twice")
	}
}
