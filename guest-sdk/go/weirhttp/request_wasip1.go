package weirhttp

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unsafe"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/internal/wit"
)

const (
	// Above the largest total size of request headers that the node accepts.
	headersSize = 320 << 10
	// Largest read from the body.
	readSizeMax = 1 << 20
)

// In the order of the interface, in which other methods come last.
var methods = [...]string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// received creates the request of a body.
func received(from *body) (*http.Request, error) {
	handle := from.request
	request := &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, RequestURI: "/", ContentLength: -1}
	wit.Ask(headersSize, func() {
		var method, path, authority, entries words
		requestMethod(handle, &method)
		if tag := int(method.tag()); tag < len(methods) {
			request.Method = methods[tag]
		} else {
			request.Method = text(method.at[1], method.at[2])
		}
		if requestPath(handle, &path); path.tag() == 1 && path.at[2] > 0 {
			request.RequestURI = text(path.at[1], path.at[2])
		}
		if requestAuthority(handle, &authority); authority.tag() == 1 {
			request.Host = text(authority.at[1], authority.at[2])
		}
		fields := requestHeaders(handle)
		fieldsEntries(fields, &entries)
		fieldsDrop(fields)
		for _, entry := range unsafe.Slice((*[4]uint32)(place(entries.at[0])), entries.at[1]) {
			request.Header.Add(text(entry[0], entry[1]), text(entry[2], entry[3]))
		}
	})
	if host := request.Header.Get("Host"); host != "" {
		// net/http keeps the host in Request.Host and not in the headers.
		request.Host = host
		request.Header.Del("Host")
	}
	if size, err := strconv.ParseInt(request.Header.Get("Content-Length"), 10, 64); err == nil && size >= 0 {
		request.ContentLength = size
	}
	request.Body = from
	var err error
	request.URL, err = url.ParseRequestURI(request.RequestURI)
	return request, err
}

func place(address uint32) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), address) }

func text(at, size uint32) string { return strings.Clone(unsafe.String((*byte)(place(at)), size)) }

// body streams the request body.
type body struct {
	request, handle, stream int32
	begun                   bool
	// Final error, or io.EOF, of the body.
	end error
}

// IsWeirBody marks the body for [weir.TakeBodyAsTensor].
func (b *body) IsWeirBody() {}

func (b *body) Read(into []byte) (int, error) {
	if b.end != nil || len(into) == 0 {
		return 0, b.end
	}
	if !b.begun {
		if b.end = b.begin(); b.end != nil {
			return 0, b.end
		}
	}
	size, count := min(len(into), readSizeMax), 0
	wit.Ask(size, func() {
		var read words
		streamRead(b.stream, uint64(size), &read)
		if read.tag() == 0 {
			count = copy(into, unsafe.Slice((*byte)(place(read.at[1])), read.at[2]))
		} else if closed := uint8(read.at[1]) == 1; closed {
			b.end = io.EOF
		} else {
			b.end = weir.Errorf(weir.InvalidArgument, "the body ended early: %w", io.ErrUnexpectedEOF)
		}
	})
	return count, b.end
}

func (b *body) begin() error {
	b.begun = true
	var consumed, stream words
	if requestConsume(b.request, &consumed); consumed.tag() != 0 {
		return weir.Errorf(weir.InvalidArgument, "the body was taken before")
	}
	b.handle = int32(consumed.at[1])
	bodyStream(b.handle, &stream)
	b.stream = int32(stream.at[1])
	return nil
}

// giveBack ends reading and releases the handles.
func (b *body) giveBack() {
	b.Close()
	if b.stream != 0 {
		streamDrop(b.stream)
	}
	if b.handle != 0 {
		bodyDrop(b.handle)
	}
	requestDrop(b.request)
}

// Close ends reading. The node discards the rest of the body.
func (b *body) Close() error {
	if b.end == nil {
		b.end = errors.New("the body was read after it was closed")
	}
	return nil
}
