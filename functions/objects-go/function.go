// objects-go stores and serves named objects, like ../objects.
package main

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

func init() { weirhttp.Serve(weirhttp.HandlerFunc(handle)) }

func main() {}

func handle(w http.ResponseWriter, r *http.Request) error {
	err := answer(w, r, strings.Trim(r.URL.Path, "/"))
	// The client chose the object, so it may see these errors.
	switch {
	case errors.Is(err, weir.NotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, weir.NotGranted):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request, name string) error {
	switch r.Method {
	case http.MethodGet:
		found, err := weir.GetObject(name)
		if err != nil {
			return err
		}
		return weir.ReplyWithTensor(w, found)
	case http.MethodPut:
		body, err := weir.TakeBodyAsTensor(r.Body, weir.Uint8, weir.Any)
		if err == nil {
			err = weir.PutObject(name, body, time.Minute)
		}
		if err != nil {
			return err
		}
	case http.MethodDelete:
		if err := weir.DeleteObject(name); err != nil {
			return err
		}
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
		_, err := io.WriteString(w, "GET, PUT or DELETE\n")
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
