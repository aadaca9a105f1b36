package weirhttp

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"unsafe"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/internal/wit"
)

// Buffer size. A response that fits gets a Content-Length and is sent at once.
const keptSize = 64 << 10

// answer is an http.ResponseWriter, http.Flusher and io.StringWriter. It sends the head with the
// first flush, or when the written data exceeds the buffer.
type answer struct {
	out    int32
	header http.Header
	// 0 until the handler or the first write sets the status.
	status   int
	kept     []byte
	isTensor bool

	sent         bool
	body, stream int32
	// The error after which nothing more is written.
	failed error
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	switch {
	case a.status != 0:
		fmt.Fprintf(os.Stderr, "the status %d comes after %d and is left out\n", status, a.status)
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		// An informational status does not end the response.
	default:
		a.status = status
	}
}

func (a *answer) WriteString(text string) (int, error) {
	return a.Write(unsafe.Slice(unsafe.StringData(text), len(text)))
}

func (a *answer) Write(data []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	switch {
	case a.isTensor:
		return 0, weir.Errorf(weir.InvalidArgument, "the answer is a tensor, and nothing else can be written")
	case a.bodyless():
		return 0, http.ErrBodyNotAllowed
	case !a.sent && len(a.kept)+len(data) <= keptSize:
		a.kept = append(a.kept, data...)
		return len(data), nil
	case !a.sent:
		a.begin(data)
		a.send(a.kept)
	}
	a.send(data)
	if a.failed != nil {
		return 0, a.failed
	}
	return len(data), nil
}

// Flush sends the buffered data.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError sends the buffered data, for an http.ResponseController.
func (a *answer) FlushError() error {
	if !a.sent && !a.isTensor {
		if a.status == 0 {
			a.status = http.StatusOK
		}
		a.begin(nil)
		a.send(a.kept)
	}
	return a.failed
}

// AnswerWithTensor implements [weir.ReplyWithTensor].
func (a *answer) AnswerWithTensor(give func() error) error {
	if a.status != 0 && len(a.kept) > 0 || a.sent {
		return weir.Errorf(weir.InvalidArgument, "the answer has begun, and cannot be a tensor any more")
	}
	if err := give(); err != nil {
		return err
	}
	a.isTensor = true
	return nil
}

// takeBack discards the buffered response, unless it has been sent.
func (a *answer) takeBack() bool {
	if a.sent || a.isTensor {
		return false
	}
	a.status, a.kept = 0, nil
	clear(a.header)
	return true
}

func (a *answer) bodyless() bool {
	return a.status == http.StatusNoContent || a.status == http.StatusNotModified || a.status < 200
}

// finish sends the rest of the response.
func (a *answer) finish() {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	if !a.sent {
		length := strconv.Itoa(len(a.kept))
		switch declared := a.header.Get("Content-Length"); {
		case a.isTensor || a.bodyless():
		case declared == "":
			a.header.Set("Content-Length", length)
		case declared != length && len(a.kept) > 0:
			// A response to HEAD declares the length that the body would have.
			a.refuse("the header Content-Length: %s is not that of the body, which has %s bytes", declared, length)
			return
		}
		a.begin(nil)
		a.send(a.kept)
	}
	if a.stream != 0 {
		if a.failed == nil {
			streamFlush(a.stream, new(words))
		}
		outputDrop(a.stream)
	}
	if a.body != 0 {
		bodyFinish(a.body, 0, 0, new(large))
	}
}

func (a *answer) has(header string) bool {
	_, is := a.header[header]
	return is
}

// begin sends the head. The body consists of the buffered data, followed by more.
func (a *answer) begin(more []byte) {
	a.sent = true
	if !a.isTensor && !a.has("Content-Type") && len(a.kept)+len(more) > 0 {
		start := append(a.kept[:len(a.kept):len(a.kept)], more[:min(len(more), 512)]...)
		a.header.Set("Content-Type", http.DetectContentType(start))
	}
	var body, stream words
	fields := fieldsNew()
	for name, values := range a.header {
		for _, value := range values {
			if !appended(fields, name, value) {
				fieldsDrop(fields)
				a.refuse("the header %s: %s cannot be sent", name, value)
				return
			}
		}
	}
	response := responseNew(fields)
	if responseSetStatus(response, int32(a.status)) != 0 {
		responseDrop(response)
		a.refuse("the status %d cannot be sent", a.status)
		return
	}
	responseBody(response, &body)
	responseSend(a.out, 0, response, 0, 0, 0, 0, 0, 0)
	a.body = int32(body.at[1])
	if !a.isTensor {
		bodyWrite(a.body, &stream)
		a.stream = int32(stream.at[1])
	}
}

func appended(fields int32, name, value string) bool {
	var done words
	// An empty string has no address, so each string gets a terminating zero.
	name, value = name+"\x00", value+"\x00"
	fieldsAppend(fields, start(name), uint32(len(name)-1), start(value), uint32(len(value)-1), &done)
	return done.tag() == 0
}

func start(text string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(text)) }

// refuse makes the node send an error response for the function, and logs the reason.
func (a *answer) refuse(format string, arguments ...any) {
	why := fmt.Sprintf(format, arguments...)
	fmt.Fprintln(os.Stderr, why)
	a.failed = weir.Errorf(weir.Internal, "%s", why)
	const some = 1
	responseSend(a.out, 1, internalError, some, int64(uintptr(start(why))), uint32(len(why)), 0, 0, 0)
}

// send writes to the body, in pieces as the node accepts them.
func (a *answer) send(data []byte) {
	for len(data) > 0 && a.failed == nil {
		var permit [2]uint64
		var done words
		wit.Ask(0, func() { streamCheck(a.stream, &permit) })
		switch {
		case uint8(permit[0]) != 0:
			a.failed = weir.Errorf(weir.Cancelled, "the client went away")
		case permit[1] == 0:
			streamFlush(a.stream, &done)
		default:
			part := data[:min(uint64(len(data)), permit[1])]
			streamWrite(a.stream, unsafe.Pointer(unsafe.SliceData(part)), uint32(len(part)), &done)
			data = data[len(part):]
		}
		if done.tag() != 0 {
			a.failed = weir.Errorf(weir.Cancelled, "the client went away")
		}
	}
}
