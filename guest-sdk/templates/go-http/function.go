// {{ name }} answers HTTP requests. Every request runs on a fresh copy of the memory: variables do
// not keep their values between requests.
package main

import (
	"fmt"
	"net/http"
	"strings"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

// The node calls the handler; main stays empty.
func init() { weirhttp.Serve(handler()) }

func main() {}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", hello)
	mux.Handle("POST /shout", weirhttp.HandlerFunc(shout))
	mux.Handle("/", weirhttp.HandlerFunc(nothing))
	return mux
}

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "hello from {{ name }}")
}

func shout(w http.ResponseWriter, r *http.Request) error {
	text, err := weirhttp.Text(r)
	if err != nil {
		return err
	}
	// Standard output and error go to `weir logs {{ name }}`.
	fmt.Printf("shouted %d bytes\n", len(text))
	_, err = fmt.Fprint(w, strings.ToUpper(text))
	return err
}

func nothing(w http.ResponseWriter, r *http.Request) error {
	return weir.StatusErrorf(http.StatusNotFound, "there are GET / and POST /shout")
}
