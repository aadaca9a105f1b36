package weir

import "fmt"

// A Type is the element type of a tensor, as defined by the Open Inference Protocol.
type Type uint8

// Element types. Elements are little-endian.
const (
	Bool Type = iota
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	BF16
	FP32
	FP64
	// Bytes: byte strings of any length, each prefixed with its length as four bytes.
	Bytes
)

var types = [...]struct {
	name string
	size int
}{
	{"bool", 1}, {"uint8", 1}, {"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"int8", 1}, {"int16", 2},
	{"int32", 4}, {"int64", 8}, {"fp16", 2}, {"bf16", 2}, {"fp32", 4}, {"fp64", 8}, {"bytes", 0},
}

// String returns the name of the type as in WIT, such as fp32.
func (t Type) String() string {
	if int(t) < len(types) {
		return types[t].name
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Size returns the size of an element in bytes; 0 for Bytes, whose elements vary in length.
func (t Type) Size() int {
	if int(t) < len(types) {
		return types[t].size
	}
	return 0
}

// An Element is a Go type that corresponds to an element type. FP16 and BF16 have no Go type: see
// [Tensor.Bytes].
type Element interface {
	bool | uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64
}

func typeOf[T Element]() Type {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case float32:
		return FP32
	default:
		return FP64
	}
}
