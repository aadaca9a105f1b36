// Package weir is for writing functions for Weir in Go: tensors, models and errors. Package weirhttp serves HTTP requests, and package
// weirstage functions that map tensors to tensors.
//
// A component has no main loop: the node calls it. What answers is set in an init function, and main stays empty:
//
//	func init() { weirhttp.Serve(handler()) }
//
//	func main() {}
//
// Every call gets a fresh copy of the function's memory, as it was when the function began: what is kept in a variable is gone with the
// answer.
//
// Go is experimental here. A function has one thread: goroutines take turns, and all of them wait while one waits for the node. To have
// models run at once, [Model.Submit] them and then [Pending.Wait] for each.
//
// Built for anything but wasip1, the package keeps tensors in memory and [Provide] stands in for the node's models, so that `go test` needs
// neither a node nor WebAssembly.
package weir
