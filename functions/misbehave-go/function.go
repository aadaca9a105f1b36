// misbehave-go misbehaves on request, like ../misbehave: the path selects the fault. For tests of
// the consequences.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

const mib = 1 << 20

func init() { weirhttp.Serve(weirhttp.HandlerFunc(handle)) }

func main() {}

func handle(w http.ResponseWriter, r *http.Request) error {
	switch r.URL.Path {
	case "/behave":
		_, err := io.WriteString(w, "ok\n")
		return err
	case "/spin":
		spin()
	case "/hoard":
		hoard()
	case "/trap":
		fail()
	case "/fail":
		return errors.New("not for the caller")
	case "/recurse":
		fmt.Fprintln(w, recurse(1))
	case "/goroutine":
		go fail()
		// Blocks until the goroutine runs.
		<-make(chan struct{})
	case "/status":
		w.WriteHeader(7)
	case "/length":
		w.Header().Set("Content-Length", "5")
		_, err := io.WriteString(w, "x")
		return err
	case "/exit":
		os.Exit(3)
	case "/open":
		_, err := weir.Open("no-such-model")
		return err
	case "/waste":
		return waste(w)
	default:
		return weir.StatusErrorf(http.StatusNotFound, "no misbehaviour called %s", r.URL.Path)
	}
	return nil
}

func spin() {
	for {
	}
}

var kept [][]byte

// hoard allocates and writes memory until none is left.
func hoard() {
	for {
		kept = append(kept, bytes.Repeat([]byte{1}, mib))
	}
}

// waste allocates several times the memory limit, keeps little of it at a time, and calls the node
// in between.
func waste(w io.Writer) error {
	for range 200 {
		kept = [][]byte{bytes.Repeat([]byte{1}, mib)}
		tensor, err := weir.New(kept[0][:mib/2])
		if err != nil {
			return err
		}
		data, err := tensor.Bytes()
		if err != nil {
			return err
		}
		if !bytes.Equal(data, kept[0][:mib/2]) {
			return errors.New("another tensor came back")
		}
		tensor.Close()
	}
	_, err := io.WriteString(w, "wasted\n")
	return err
}

func recurse(depth uint64) uint64 { return recurse(depth+1) + depth }

func fail() { panic("on purpose") }
