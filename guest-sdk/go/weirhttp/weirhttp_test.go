package weirhttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

func answered(fails error) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	handler := HandlerFunc(func(http.ResponseWriter, *http.Request) error { return fails })
	handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
	return answer
}

func TestHandlerErrorBecomesResponse(t *testing.T) {
	for _, one := range []struct {
		fails       error
		status      int
		body, retry string
	}{
		{nil, 200, "", ""},
		{weir.StatusErrorf(404, "nothing here"), 404, "nothing here\n", ""},
		{fmt.Errorf("digits: %w", weir.Errorf(weir.Unavailable, "later")), 503, "digits: later\n", "1"},
		{weir.Errorf(weir.DeadlineExceeded, "too late"), 504, "too late\n", ""},
		{errors.New("secret"), 500, "the function failed; its log says why\n", ""},
	} {
		answer := answered(one.fails)
		if answer.Code != one.status || answer.Body.String() != one.body || answer.Header().Get("Retry-After") != one.retry {
			t.Errorf("%v: %d, %q, %v", one.fails, answer.Code, answer.Body, answer.Header())
		}
	}
}

func TestTextRequiresUTF8(t *testing.T) {
	text, err := Text(httptest.NewRequest("POST", "/", strings.NewReader("grüezi")))
	if err != nil || text != "grüezi" {
		t.Error(text, err)
	}
	var known *weir.Error
	_, err = Text(httptest.NewRequest("POST", "/", strings.NewReader("\xff\xfe")))
	if !errors.As(err, &known) || known.Status != http.StatusBadRequest {
		t.Error(err)
	}
}
