package weirstage

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unsafe"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

// A word of the canonical ABI: a pointer, a length, a handle or the tag of a variant.
type word = uint32

// The return value, a result<list<tuple<string, tensor>>, error>, and the memory it points to, kept
// until the node has read it.
var (
	answer [4]word
	items  [][3]word
	names  []string
	text   string
)

//go:wasmexport weir:inference/stage@0.1.0#run
func stageRun(given unsafe.Pointer, count uint32) unsafe.Pointer {
	inputs := make(weir.Tensors, count)
	for _, input := range unsafe.Slice((*[3]word)(given), count) {
		name := unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(nil), input[0])), input[1])
		inputs[strings.Clone(name)] = weir.TensorOfHandle(int32(input[2]))
	}
	outputs, err := run(served, inputs)
	if err != nil {
		refuse(err)
	} else {
		give(outputs)
	}
	return unsafe.Pointer(&answer)
}

func give(outputs weir.Tensors) {
	names = slices.Sorted(maps.Keys(outputs))
	items = make([][3]word, 0, len(names))
	for _, name := range names {
		handle := word(outputs[name].TakeHandle())
		items = append(items, [3]word{address(unsafe.StringData(name)), word(len(name)), handle})
	}
	answer = [4]word{0, address(unsafe.SliceData(items)), word(len(items)), 0}
}

func refuse(err error) {
	code, message, all := shown(err)
	if !all {
		fmt.Fprintln(os.Stderr, err)
	}
	text = message
	answer = [4]word{1, word(code), address(unsafe.StringData(text)), word(len(text))}
}

func address[T any](at *T) word { return word(uintptr(unsafe.Pointer(at))) }
