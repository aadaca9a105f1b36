package weir

import (
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func roundTrip[T Element](t *testing.T, elements Type, values ...T) {
	t.Helper()
	made := must[*Tensor](t)(New(values))
	if made.Type() != elements || !slices.Equal(made.Shape(), []int{len(values)}) {
		t.Errorf("%s %v", made.Type(), made.Shape())
	}
	if made.Size() != int64(len(values)*elements.Size()) {
		t.Errorf("%d bytes", made.Size())
	}
	if got := must[[]T](t)(Values[T](made)); !slices.Equal(got, values) {
		t.Errorf("%v became %v", values, got)
	}
}

func TestValuesOfEveryTypeRoundTrip(t *testing.T) {
	roundTrip(t, Bool, true, false, true)
	roundTrip(t, Uint8, uint8(0), math.MaxUint8)
	roundTrip(t, Uint16, uint16(1), math.MaxUint16)
	roundTrip(t, Uint32, uint32(1), math.MaxUint32)
	roundTrip(t, Uint64, uint64(1), math.MaxUint64)
	roundTrip(t, Int8, int8(math.MinInt8), math.MaxInt8)
	roundTrip(t, Int16, int16(math.MinInt16), math.MaxInt16)
	roundTrip(t, Int32, int32(math.MinInt32), math.MaxInt32)
	roundTrip(t, Int64, int64(math.MinInt64), math.MaxInt64)
	roundTrip(t, FP32, float32(-0.5), math.MaxFloat32)
	roundTrip(t, FP64, -0.5, math.MaxFloat64)
	roundTrip[float32](t, FP32)
}

func TestElementsAreLittleEndian(t *testing.T) {
	made := must[*Tensor](t)(New([]uint16{0x0102}))
	if got := must[[]byte](t)(made.Bytes()); !slices.Equal(got, []byte{2, 1}) {
		t.Error(got)
	}
	// The bytes are not aligned for their type.
	if got := valuesOf[uint32](append([]byte{9}, 1, 0, 0, 0)[1:]); !slices.Equal(got, []uint32{1}) {
		t.Error(got)
	}
	if got := valuesOf[bool]([]byte{0, 2}); !slices.Equal(got, []bool{false, true}) {
		t.Error(got)
	}
}

func TestMismatchedShapeIsRejected(t *testing.T) {
	if made := must[*Tensor](t)(Scalar(int64(7))); len(made.Shape()) != 0 || made.Size() != 8 {
		t.Error(made.Shape(), made.Size())
	}
	for _, shape := range [][]int{{2}, {Any}, {-2}, {3, 0}, {math.MaxInt, math.MaxInt}, {1 << 20, 1 << 20, 1 << 30}} {
		if _, err := New([]float32{1, 2, 3}, shape...); !errors.Is(err, InvalidArgument) {
			t.Errorf("%v: %v", shape, err)
		}
	}
	if _, err := New([]float32{1, 2, 3, 4}, 2, 2); err != nil {
		t.Error(err)
	}
}

func TestMismatchedElementTypeIsRejected(t *testing.T) {
	made := must[*Tensor](t)(New([]int64{1}))
	if _, err := Values[float32](made); err == nil || err.Error() != "the tensor holds int64 and not fp32" {
		t.Error(err)
	}
	if _, err := ByteStrings(made); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
}

func TestByteStringsRoundTrip(t *testing.T) {
	made := must[*Tensor](t)(NewBytes([]string{"", "grüezi"}, 2, 1))
	got := must[[][]byte](t)(ByteStrings(made))
	if !reflect.DeepEqual(got, [][]byte{{}, []byte("grüezi")}) || !slices.Equal(made.Shape(), []int{2, 1}) {
		t.Error(got, made.Shape())
	}
	for _, cut := range []string{"\x01", "\x02\x00\x00\x00a", "\xff\xff\xff\xff"} {
		made := must[*Tensor](t)(FromBytes(Bytes, []byte(cut), []int{1}))
		if _, err := ByteStrings(made); !errors.Is(err, InvalidArgument) {
			t.Errorf("%q: %v", cut, err)
		}
	}
}

func TestTensorSupportsPartialReads(t *testing.T) {
	made := must[*Tensor](t)(New([]byte("0123456789")))
	all := must[[]byte](t)(io.ReadAll(io.NewSectionReader(made, 3, 100)))
	if string(all) != "3456789" {
		t.Errorf("%q", all)
	}
	if _, err := made.ReadAt(make([]byte, 1), -1); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	if count, err := made.ReadAt(make([]byte, 1), 11); count != 0 || err != io.EOF {
		t.Error(count, err)
	}
}

func TestMissingTensorErrorListsNames(t *testing.T) {
	made := must[*Tensor](t)(New([]byte("a")))
	_, err := Tensors{"b": made, "a": made}.Get("x")
	if err == nil || err.Error() != "there is no tensor x; there are a, b" {
		t.Error(err)
	}
	if _, err := (Tensors{}).Get("x"); !strings.HasSuffix(err.Error(), "there are none") {
		t.Error(err)
	}
}
