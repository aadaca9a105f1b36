// Package weirhttp serves the HTTP requests of a function for Weir with an [http.Handler], whatever made it: an [http.ServeMux], a router,
// or a [HandlerFunc].
//
//	func init() {
//		mux := http.NewServeMux()
//		mux.HandleFunc("GET /{$}", hello)
//		mux.Handle("POST /digits", weirhttp.HandlerFunc(digits))
//		weirhttp.Serve(mux)
//	}
//
//	func digits(w http.ResponseWriter, r *http.Request) error {
//		image, err := weir.TakeBodyAsTensor(r.Body, weir.FP32, 1, 1, 8, 8)
//		if err != nil {
//			return err
//		}
//		model, err := weir.Open("digits")
//		if err != nil {
//			return err
//		}
//		outputs, err := model.Infer(weir.Tensors{"image": image})
//		if err != nil {
//			return err
//		}
//		return weir.ReplyWithTensor(w, outputs["probabilities"])
//	}
//
//	func main() {}
//
// A panic, in a handler or any other goroutine, ends the call: the client gets status 500, and the log the panic and where it came from.
// net/http's client and server do not work here: a component has no sockets.
package weirhttp

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"unicode/utf8"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

var served http.Handler

// Serve makes the component answer HTTP requests with handler. Call it in an init function.
//
// Paths are within the function: the node has taken its own part off.
func Serve(handler http.Handler) { served = handler }

// A HandlerFunc is a handler that may fail: what it returns [Error] answers, in place of what was written. Where that is on its way already,
// the answer is broken off.
type HandlerFunc func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP calls f.
func (f HandlerFunc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := f(w, r)
	if err == nil {
		return
	}
	if begun, is := w.(interface{ takeBack() bool }); is && !begun.takeBack() {
		fmt.Fprintln(os.Stderr, err)
		panic(http.ErrAbortHandler)
	}
	Error(w, err)
}

// Error answers with an error: a [weir.Error] with its status and its text, and any other with status 500, while its text goes to the log.
func Error(w http.ResponseWriter, err error) {
	var known *weir.Error
	if !errors.As(err, &known) {
		fmt.Fprintln(os.Stderr, err)
		http.Error(w, "the function failed; its log says why", http.StatusInternalServerError)
		return
	}
	if known.Code == weir.ResourceExhausted || known.Code == weir.Unavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), known.Status)
}

// Text reads the body of a request as text. It fails with status 400 where that is not UTF-8.
func Text(r *http.Request) (string, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) {
		return "", weir.StatusErrorf(http.StatusBadRequest, "the body is no text")
	}
	return string(data), nil
}
