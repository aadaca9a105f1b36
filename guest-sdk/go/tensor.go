package weir

import (
	"encoding/binary"
	"io"
	"math"
	"unsafe"
)

// A Tensor is on the node. Its bytes are in the function's memory only once they are read.
//
// The node takes tensors back when the call ends, and sooner where the garbage collector finds that one is out of use. A function that makes
// many large ones closes each itself: the collector sees no more of them than a handle.
type Tensor struct{ on nodeTensor }

// Any stands for one dimension of a shape, where a body's length makes it.
const Any = -1

// New copies values into a tensor of their type. Without a shape it has one dimension; [Scalar] makes one that has none.
func New[T Element](values []T, shape ...int) (*Tensor, error) {
	if len(shape) == 0 {
		shape = []int{len(values)}
	}
	return FromBytes(typeOf[T](), bytesOf(values), shape)
}

// Scalar makes a tensor of one element, without dimensions.
func Scalar[T Element](value T) (*Tensor, error) {
	return FromBytes(typeOf[T](), bytesOf([]T{value}), []int{})
}

// NewBytes makes a tensor of byte strings. Without a shape it has one dimension.
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

// FromBytes copies data, elements as they lie in memory, into a tensor of any type and shape.
func FromBytes(elements Type, data []byte, shape []int) (*Tensor, error) {
	sizes, err := sizesOf(shape, false)
	if err != nil {
		return nil, err
	}
	return tensor(newTensor(elements, sizes, data))
}

// Type is the type of its elements.
func (t *Tensor) Type() Type { return t.on.elementType() }

// Shape is the size of each dimension, outermost first.
func (t *Tensor) Shape() []int {
	sizes := t.on.shape()
	shape := make([]int, len(sizes))
	for at, size := range sizes {
		shape[at] = int(size)
	}
	return shape
}

// Size is how many bytes its elements take.
func (t *Tensor) Size() int64 { return t.on.size() }

// Bytes reads its elements as they lie in memory.
func (t *Tensor) Bytes() ([]byte, error) { return t.on.read(0, t.Size()) }

// ReadAt reads bytes of its elements from an offset on, as io.ReaderAt has it.
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

// Close gives the tensor back to the node. It must not be used afterwards.
func (t *Tensor) Close() error {
	t.on.drop()
	return nil
}

// Values reads the elements of a tensor, which must be of T's type.
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

// sizesOf gives a shape as the contract has it.
func sizesOf(shape []int, anyAllowed bool) ([]uint32, error) {
	sizes := make([]uint32, len(shape))
	for at, size := range shape {
		if !(anyAllowed && size == Any) && (size < 0 || uint64(size) >= math.MaxUint32) {
			return nil, Errorf(InvalidArgument, "%d is no size of a dimension", size)
		}
		// The contract's sign for Any has all bits set.
		sizes[at] = uint32(size)
	}
	return sizes, nil
}

func bytesOf[T Element](values []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(one)))
}

// valuesOf gives data, which nobody else has, as values.
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
