// echo-body-go answers with the request's body, as ../echo-body does, a part at a time.
package main

import (
	"io"
	"net/http"

	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

func init() { weirhttp.Serve(weirhttp.HandlerFunc(echo)) }

func main() {}

func echo(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err := io.Copy(w, r.Body)
	return err
}
