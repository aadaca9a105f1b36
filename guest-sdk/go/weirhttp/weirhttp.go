// Package weirhttp serves the HTTP requests of a Weir function with any [http.Handler]: an
// [http.ServeMux], a router, or a [HandlerFunc].
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
// A panic in a handler or another goroutine ends the call: the client gets status 500, and the log
// gets the panic with its stack trace. net/http's client and server do not work in a component,
// which has no sockets.
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
// Paths are relative to the function: the node removes its own prefix.
func Serve(handler http.Handler) { served = handler }

// A HandlerFunc is a handler that may fail. [Error] turns a returned error into the response, in
// place of any buffered output. If output was already sent, the response is aborted.
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

// Error responds with an error: a [weir.Error] with its status and text, and any other error with
// status 500, with its text in the log.
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

// Text reads the body of a request as text. It fails with status 400 if the body is not UTF-8.
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
