// echo-body-go echoes the request body, like ../echo-body, in parts. Under /tensor the body is an
// fp32 tensor and does not enter guest memory.
package main

import (
	"io"
	"net/http"
	"strconv"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

func init() {
	mux := http.NewServeMux()
	mux.Handle("/", weirhttp.HandlerFunc(echo))
	mux.Handle("/tensor", weirhttp.HandlerFunc(echoTensor))
	weirhttp.Serve(mux)
}

func main() {}

func echo(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err := io.Copy(w, r.Body)
	return err
}

func echoTensor(w http.ResponseWriter, r *http.Request) error {
	body, err := weir.TakeBodyAsTensor(r.Body, weir.FP32, weir.Any)
	if err != nil {
		return err
	}
	w.Header().Set("Echo-Elements", strconv.Itoa(body.Shape()[0]))
	w.WriteHeader(http.StatusCreated)
	return weir.ReplyWithTensor(w, body)
}
