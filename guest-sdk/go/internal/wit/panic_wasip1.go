package wit

import (
	"fmt"
	"os"
	"runtime/debug"
)

// TrapOnPanic, deferred, ends the call where it panics, with the panic and where it came from in the log. Go itself would end the process,
// which the node takes for a wish.
func TrapOnPanic() {
	if why := recover(); why != nil {
		fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", why, debug.Stack())
		Trap()
	}
}

// Trap ends the call.
func Trap()
