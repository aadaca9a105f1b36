// Package weir provides tensors, models and errors for Weir functions in Go. Package weirhttp
// serves HTTP requests, and package weirstage serves functions that map tensors to tensors.
//
// A component has no main loop: the node calls its handler. Set the handler in an init function,
// and leave main empty:
//
//	func init() { weirhttp.Serve(handler()) }
//
//	func main() {}
//
// Every call runs on a fresh copy of the function's initial memory: variables do not keep their
// values between calls.
//
// Support for Go is experimental. A function has one thread: goroutines take turns, and all of them
// wait while one waits for the node. To run models concurrently, call [Model.Submit] for each and
// then [Pending.Wait] for each.
//
// On targets other than wasip1, the package keeps tensors in memory, and [Provide] substitutes the
// node's models and [ProvideImages] its decoder of images, so that `go test` needs neither a node
// nor WebAssembly.
package weir
