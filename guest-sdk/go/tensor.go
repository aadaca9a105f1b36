package weir

import (
	"encoding/binary"
	"io"
	"math"
	"unsafe"
)

// A Tensor is stored on the node. Its data enters guest memory only when it is read.
//
// The node releases tensors at the end of the call, or earlier if the garbage collector finds a
// tensor unreachable. A function that creates many large tensors should close each of them: the
// collector sees only the size of a handle.
type Tensor struct{ on nodeTensor }

// Any stands for a dimension of a shape that is inferred from the length of a body.
const Any = -1

// New creates a tensor from a copy of values. Without a shape it has one dimension; use [Scalar]
// for a tensor without dimensions.
func New[T Element](values []T, shape ...int) (*Tensor, error) {
	if len(shape) == 0 {
		shape = []int{len(values)}
	}
	return FromBytes(typeOf[T](), bytesOf(values), shape)
}

// Scalar creates a tensor of one element, without dimensions.
func Scalar[T Element](value T) (*Tensor, error) {
	return FromBytes(typeOf[T](), bytesOf([]T{value}), []int{})
}

// NewBytes creates a tensor of byte strings. Without a shape it has one dimension.
func NewBytes[T string | []byte](values []T, shape ...int) (*Tensor, error) {
	if len(shape) == 0 {
		shape = []int{len(values)}
	}
	var data []byte
	for _, value := range values {
		if uint64(len(value)) > math.MaxUint32 {
			return nil, Errorf(InvalidArgument, "a byte string of %d bytes is too long", len(value))
		}
		data = binary.LittleEndian.AppendUint32(data, uint32(len(value)))
		data = append(data, value...)
	}
	return FromBytes(Bytes, data, shape)
}

// FromBytes creates a tensor of any type and shape from a copy of data, in the memory layout of its
// elements.
func FromBytes(elements Type, data []byte, shape []int) (*Tensor, error) {
	sizes, err := sizesOf(shape, false)
	if err != nil {
		return nil, err
	}
	return tensor(newTensor(elements, sizes, data))
}

// Type returns the element type.
func (t *Tensor) Type() Type { return t.on.elementType() }

// Shape returns the size of each dimension, outermost first.
func (t *Tensor) Shape() []int {
	sizes := t.on.shape()
	shape := make([]int, len(sizes))
	for at, size := range sizes {
		shape[at] = int(size)
	}
	return shape
}

// Size returns the size of the data in bytes.
func (t *Tensor) Size() int64 { return t.on.size() }

// Bytes reads the data in the memory layout of its elements.
func (t *Tensor) Bytes() ([]byte, error) { return t.on.read(0, t.Size()) }

// ReadAt reads a part of the data, as specified by io.ReaderAt.
func (t *Tensor) ReadAt(into []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, Errorf(InvalidArgument, "the offset %d is below zero", offset)
	}
	size := min(int64(len(into)), max(t.Size()-offset, 0))
	data, err := t.on.read(min(offset, t.Size()), size)
	if err != nil {
		return 0, err
	}
	count := copy(into, data)
	if count < len(into) {
		return count, io.EOF
	}
	return count, nil
}

// Close releases the tensor. It must not be used afterwards.
func (t *Tensor) Close() error {
	t.on.drop()
	return nil
}

// Values reads the elements of a tensor, which must have the element type of T.
func Values[T Element](t *Tensor) ([]T, error) {
	if is, wanted := t.Type(), typeOf[T](); is != wanted {
		return nil, Errorf(InvalidArgument, "the tensor holds %s and not %s", is, wanted)
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	return valuesOf[T](data), nil
}

// ByteStrings reads the elements of a tensor of byte strings.
func ByteStrings(t *Tensor) ([][]byte, error) {
	if is := t.Type(); is != Bytes {
		return nil, Errorf(InvalidArgument, "the tensor holds %s and not %s", is, Bytes)
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for len(data) > 0 {
		if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
			return nil, Errorf(InvalidArgument, "the tensor ends inside a byte string")
		}
		end := 4 + int(binary.LittleEndian.Uint32(data))
		all = append(all, data[4:end:end])
		data = data[end:]
	}
	return all, nil
}

func tensor(on nodeTensor, err error) (*Tensor, error) {
	if err != nil {
		return nil, err
	}
	return &Tensor{on}, nil
}

// sizesOf converts a shape to the node's format.
func sizesOf(shape []int, anyAllowed bool) ([]uint32, error) {
	sizes := make([]uint32, len(shape))
	for at, size := range shape {
		if !(anyAllowed && size == Any) && (size < 0 || uint64(size) >= math.MaxUint32) {
			return nil, Errorf(InvalidArgument, "%d is no size of a dimension", size)
		}
		// The node's encoding of Any has all bits set.
		sizes[at] = uint32(size)
	}
	return sizes, nil
}

func bytesOf[T Element](values []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(one)))
}

// valuesOf converts data to values. The result may share the memory of data, so the caller must not
// use data afterwards.
func valuesOf[T Element](data []byte) []T {
	var one T
	size := int(unsafe.Sizeof(one))
	count := len(data) / size
	if _, isBool := any(one).(bool); !isBool && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) == 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), count)
	}
	values := make([]T, count)
	if flags, are := any(values).([]bool); are {
		for at := range flags {
			flags[at] = data[at] != 0
		}
		return values
	}
	copy(bytesOf(values), data)
	return values
}
