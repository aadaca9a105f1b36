package weirhttp

import (
	"structs"
	"unsafe"
)

// The imports of wasi:http needed for serving, by the canonical ABI: a twentieth of the interface.
// Generated bindings would have 6,000 lines.

// Memory for the return value of an import: pointers, lengths, handles and tags of 32 bits each.
type words struct {
	_  structs.HostLayout
	at [4]uint32
}

// tag returns the first byte: 0 for success or none.
func (w *words) tag() uint8 { return uint8(w.at[0]) }

// A result whose error can be error-code, the largest type.
type large struct {
	_  structs.HostLayout
	at [9]uint64
}

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-request.method
func requestMethod(request int32, method *words)

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-request.path-with-query
func requestPath(request int32, path *words)

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-request.authority
func requestAuthority(request int32, authority *words)

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-request.headers
func requestHeaders(request int32) int32

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-request.consume
func requestConsume(request int32, body *words)

//go:wasmimport wasi:http/types@0.2.12 [resource-drop]incoming-request
func requestDrop(request int32)

//go:wasmimport wasi:http/types@0.2.12 [method]incoming-body.stream
func bodyStream(body int32, stream *words)

//go:wasmimport wasi:http/types@0.2.12 [resource-drop]incoming-body
func bodyDrop(body int32)

//go:wasmimport wasi:io/streams@0.2.12 [method]input-stream.blocking-read
func streamRead(stream int32, size uint64, read *words)

//go:wasmimport wasi:io/streams@0.2.12 [resource-drop]input-stream
func streamDrop(stream int32)

//go:wasmimport wasi:http/types@0.2.12 [constructor]fields
func fieldsNew() int32

//go:wasmimport wasi:http/types@0.2.12 [method]fields.entries
func fieldsEntries(fields int32, entries *words)

//go:wasmimport wasi:http/types@0.2.12 [method]fields.append
func fieldsAppend(fields int32, name unsafe.Pointer, nameSize uint32, value unsafe.Pointer, valueSize uint32, done *words)

//go:wasmimport wasi:http/types@0.2.12 [resource-drop]fields
func fieldsDrop(fields int32)

//go:wasmimport wasi:http/types@0.2.12 [constructor]outgoing-response
func responseNew(fields int32) int32

//go:wasmimport wasi:http/types@0.2.12 [method]outgoing-response.set-status-code
func responseSetStatus(response, status int32) int32

//go:wasmimport wasi:http/types@0.2.12 [resource-drop]outgoing-response
func responseDrop(response int32)

//go:wasmimport wasi:http/types@0.2.12 [method]outgoing-response.body
func responseBody(response int32, body *words)

// The arguments from a on are the flattened error-code, with the widest type of each case.
//
//go:wasmimport wasi:http/types@0.2.12 [static]response-outparam.set
func responseSend(out, isErr, responseOrTag, a int32, b int64, c, d, e uint32, f int32)

//go:wasmimport wasi:http/types@0.2.12 [method]outgoing-body.write
func bodyWrite(body int32, stream *words)

//go:wasmimport wasi:http/types@0.2.12 [static]outgoing-body.finish
func bodyFinish(body int32, hasTrailers, trailers int32, done *large)

//go:wasmimport wasi:io/streams@0.2.12 [method]output-stream.check-write
func streamCheck(stream int32, permit *[2]uint64)

//go:wasmimport wasi:io/streams@0.2.12 [method]output-stream.write
func streamWrite(stream int32, from unsafe.Pointer, size uint32, done *words)

//go:wasmimport wasi:io/streams@0.2.12 [method]output-stream.blocking-flush
func streamFlush(stream int32, done *words)

//go:wasmimport wasi:io/streams@0.2.12 [resource-drop]output-stream
func outputDrop(stream int32)

// The case of error-code that takes any text.
const internalError = 38
