package wit

import (
	"sync"
	"unsafe"
)

// While the node requests memory with cabi_realloc, a component must not call any import, not even
// to read the clock. The garbage collector reads the clock when it starts, and any allocation can
// start it. Memory is therefore reserved before a call, and nothing is allocated during the call:
// not even a larger stack, hence nosplit.
var (
	// Serialises calls, so that returned memory is not collected before it has been read.
	one sync.Mutex
	// Unused part of the reserved memory.
	free []byte
	// All memory reserved for the current call. The node holds addresses in it.
	held [][]byte
)

const (
	// Size of a reservation.
	asideSize = 64 << 10
	// Largest alignment that the canonical ABI requests here.
	align = 8
)

// Text is a size that suffices for any text or list of names from the node.
const Text = 16 << 10

// Ask runs call, which calls the node and reads the returned memory: size bytes at most, plus a
// small reserve.
func Ask(size int, call func()) {
	one.Lock()
	defer one.Unlock()
	setAside(size)
	call()
}

func setAside(size int) {
	clear(held)
	held = held[:0]
	if size += 2 * align; len(free) < size {
		free = make([]byte, max(size, asideSize))
	}
	held = append(held, free)
}

// Reserves memory for the arguments of the first call.
func init() { setAside(Text) }

//go:wasmexport cabi_realloc
//go:nosplit
func cabiRealloc(old unsafe.Pointer, oldSize, _, newSize uintptr) unsafe.Pointer {
	size := (newSize + align - 1) &^ (align - 1)
	if uintptr(len(free)) < size {
		setMoreAside(size)
	}
	made := unsafe.Pointer(unsafe.SliceData(free))
	free = free[size:]
	if oldSize > 0 {
		copy(unsafe.Slice((*byte)(made), newSize), unsafe.Slice((*byte)(old), oldSize))
	}
	return made
}

// setMoreAside reserves memory during a call that needs more than expected. It fails only if the
// garbage collector is due at that moment.
func setMoreAside(size uintptr) {
	free = make([]byte, size)
	held = append(held, free)
}

// The WASI preview 1 adapter requests a page and a stack once, while Go starts and before anything
// can be allocated.
var adapter struct {
	memory [3 << 13]uint64
	used   uintptr
}

//go:wasmexport cabi_realloc_adapter
func adapterRealloc(_ unsafe.Pointer, _, _, newSize uintptr) unsafe.Pointer {
	made := unsafe.Pointer(&adapter.memory[adapter.used])
	adapter.used += (newSize + align - 1) / align
	return made
}
