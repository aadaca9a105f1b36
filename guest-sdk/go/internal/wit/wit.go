// Package wit is the runtime of the bindings in internal/abi: some of the types of WIT interfaces,
// and the memory for values returned by the node.
package wit

import (
	"runtime"
	"unsafe"
)

// Option is an optional value.
type Option[T any] struct {
	some  bool
	value T
}

// Tags of an Option.
const (
	OptionNone uint8 = iota
	OptionSome
)

// Some returns an option with a value.
func Some[T any](value T) Option[T] { return Option[T]{true, value} }

// None returns an option without a value.
func None[T any]() Option[T] { return Option[T]{} }

// Tag returns the tag of the option.
func (o Option[T]) Tag() uint8 {
	if o.some {
		return OptionSome
	}
	return OptionNone
}

// IsSome reports whether there is a value.
func (o Option[T]) IsSome() bool { return o.some }

// Some returns the value.
func (o Option[T]) Some() T {
	if !o.some {
		panic("there is no value")
	}
	return o.value
}

// Result is a value or an error.
type Result[T, E any] struct {
	isErr bool
	ok    T
	err   E
}

// Ok returns a result with a value.
func Ok[T, E any](value T) Result[T, E] { return Result[T, E]{ok: value} }

// Err returns a result with an error.
func Err[T, E any](err E) Result[T, E] { return Result[T, E]{isErr: true, err: err} }

// IsErr reports whether the result is an error.
func (r Result[T, E]) IsErr() bool { return r.isErr }

// Ok returns the value.
func (r Result[T, E]) Ok() T {
	if r.isErr {
		panic("there is no value")
	}
	return r.ok
}

// Err returns the error.
func (r Result[T, E]) Err() E {
	if !r.isErr {
		panic("there is no error")
	}
	return r.err
}

// Tuple2 is a pair.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

// Unit is the empty type.
type Unit struct{}

// Handle is the node's handle of a resource. Its ownership is transferred at most once.
type Handle struct{ value int32 }

// MakeHandle wraps a handle that the node returned.
func MakeHandle(value int32) *Handle { return &Handle{value} }

// Use returns the handle for one call.
func (h *Handle) Use() int32 {
	if h.value == 0 {
		panic("a tensor, model or run was used after it was closed or given away")
	}
	return h.value
}

// Take transfers the ownership of the handle to the caller.
func (h *Handle) Take() int32 {
	value := h.Use()
	h.value = 0
	return value
}

// TakeOrNil transfers the ownership of the handle; 0 if it was already transferred.
func (h *Handle) TakeOrNil() int32 {
	value := h.value
	h.value = 0
	return value
}

// Set stores a handle that was returned.
func (h *Handle) Set(value int32) { h.value = value }

// Allocate returns pinned memory for the arguments of a call.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	if size == 0 {
		return nil
	}
	// An array of 64-bit words, the largest alignment of any type.
	made := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(made)
	return made
}
