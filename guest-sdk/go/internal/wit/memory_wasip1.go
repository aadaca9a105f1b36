package wit

import (
	"sync"
	"unsafe"
)

// While the node asks for memory, a component may call nothing, not even for the time. The garbage collector asks for that when it starts,
// and what starts it is an allocation. So memory is set aside before a call, and nothing is allocated while it lasts: not even a larger
// stack, hence nosplit.
var (
	// One call at a time: what it was handed must not be collected before it has been taken.
	one sync.Mutex
	// What is left of what was set aside.
	free []byte
	// All that was set aside for the call under way, which the node has the addresses of.
	held [][]byte
)

const (
	// What is set aside at once.
	asideSize = 64 << 10
	// The most that the canonical ABI aligns by here.
	align = 8
)

// Text is enough for any text or list of names that the node gives.
const Text = 16 << 10

// Ask runs call, which calls the node and takes what it is handed: size bytes at most, and a little more.
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

// For the first call's arguments.
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

// setMoreAside is for more than was thought possible. It goes wrong only if the garbage collector is due at this very moment.
func setMoreAside(size uintptr) {
	free = make([]byte, size)
	held = append(held, free)
}

// What stands between Go's WASI and the node's asks for a page and a stack of its own, once, and as Go starts: before anything can be
// allocated.
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
