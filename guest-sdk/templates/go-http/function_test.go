package main

// Run with `go test`; needs no node. `weir build` makes Go available in .weir/toolchain/bin.

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestShoutingIsInCapitals(t *testing.T) {
	answer := httptest.NewRecorder()
	handler().ServeHTTP(answer, httptest.NewRequest("POST", "/shout", strings.NewReader("grüezi")))
	if got := answer.Body.String(); got != "GRÜEZI" {
		t.Errorf("got %q", got)
	}
}
