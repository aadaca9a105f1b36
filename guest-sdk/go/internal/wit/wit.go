// Package wit is what the bindings in internal/abi stand on: a few of the types that interfaces are made of, and memory for what the node
// hands over.
package wit

import (
	"runtime"
	"unsafe"
)

// Option is a value or none.
type Option[T any] struct {
	some  bool
	value T
}

// The tags of an Option.
const (
	OptionNone uint8 = iota
	OptionSome
)

// Some gives an option with a value.
func Some[T any](value T) Option[T] { return Option[T]{true, value} }

// None gives an option without one.
func None[T any]() Option[T] { return Option[T]{} }

// Tag tells which it is.
func (o Option[T]) Tag() uint8 {
	if o.some {
		return OptionSome
	}
	return OptionNone
}

// IsSome tells whether there is a value.
func (o Option[T]) IsSome() bool { return o.some }

// Some gives the value.
func (o Option[T]) Some() T {
	if !o.some {
		panic("there is no value")
	}
	return o.value
}

// Result is a value, or why there is none.
type Result[T, E any] struct {
	isErr bool
	ok    T
	err   E
}

// Ok gives a result with a value.
func Ok[T, E any](value T) Result[T, E] { return Result[T, E]{ok: value} }

// Err gives a result without one.
func Err[T, E any](err E) Result[T, E] { return Result[T, E]{isErr: true, err: err} }

// IsErr tells whether there is no value.
func (r Result[T, E]) IsErr() bool { return r.isErr }

// Ok gives the value.
func (r Result[T, E]) Ok() T {
	if r.isErr {
		panic("there is no value")
	}
	return r.ok
}

// Err gives why there is none.
func (r Result[T, E]) Err() E {
	if !r.isErr {
		panic("there is no error")
	}
	return r.err
}

// Tuple2 is two values.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

// Unit is no value.
type Unit struct{}

// Handle is what the node knows a resource by. It is given back once.
type Handle struct{ value int32 }

// MakeHandle keeps what the node gave.
func MakeHandle(value int32) *Handle { return &Handle{value} }

// Use gives the handle for one call.
func (h *Handle) Use() int32 {
	if h.value == 0 {
		panic("a tensor, model or run was used after it was closed or given away")
	}
	return h.value
}

// Take gives the handle away.
func (h *Handle) Take() int32 {
	value := h.Use()
	h.value = 0
	return value
}

// TakeOrNil gives the handle away; 0 where it is gone already.
func (h *Handle) TakeOrNil() int32 {
	value := h.value
	h.value = 0
	return value
}

// Set keeps a handle that came back.
func (h *Handle) Set(value int32) { h.value = value }

// Allocate gives memory for arguments of a call, pinned.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	if size == 0 {
		return nil
	}
	// Words, for no type wants more alignment.
	made := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(made)
	return made
}
