package main

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	weir "github.com/weir-platform/weir/guest-sdk/go"
)

const folder = "../classify-digits/samples/"

// provide registers a model that returns likely, after take has seen its input.
func provide(t *testing.T, take func(input []float32)) {
	weir.Provide("digits", func(inputs weir.Tensors) (weir.Tensors, error) {
		image, err := inputs.Get("image")
		if err != nil {
			return nil, err
		}
		input, err := weir.Values[float32](image)
		if err != nil {
			return nil, err
		}
		take(input)
		probabilities, err := weir.New([]float32{.05, .05, .05, .05, .05, .05, .05, .55, 1.5e-17, .05}, 1, 10)
		return weir.Tensors{"probabilities": probabilities}, err
	})
	t.Cleanup(func() { weir.Provide("digits", nil) })
}

func call(method, path, body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	handle(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
	return answer
}

func TestBadRequestsHaveDistinctErrors(t *testing.T) {
	provide(t, func([]float32) {})
	for _, one := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/", "", 200},
		{"GET", "/nowhere", "", 404},
		{"DELETE", "/", "", 405},
		{"POST", "/", "", 400},
		{"POST", "/", " \n", 400},
		{"POST", "/", "GIF89a", 415},
		{"POST", "/", "\x89PNG\r\n\x1a\n and no more", 400},
		{"POST", "/", `{"pixels": 3}`, 400},
		{"POST", "/", `{"pixels": [[0, null]]}`, 400},
		{"POST", "/", `{"pixels": [[0, 1]], "more": 1}`, 400},
		{"POST", "/", `{"pixels": [[0, 1]]} {}`, 400},
		{"POST", "/", `{"pixels": [[0, 1e999]]}`, 400},
		{"POST", "/", `{"pixels": [[0, 1e99]]}`, 400},
		{"POST", "/", `{"pixels": [[0, 1], [1]]}`, 400},
		{"POST", "/", `{"pixels": [[3, 3]]}`, 422},
		{"POST", "/classify", `{"pixels": [[0, 1]]}`, 200},
	} {
		if answer := call(one.method, one.path, one.body); answer.Code != one.status {
			t.Errorf("%s %s %s: %d, %s", one.method, one.path, one.body, answer.Code, answer.Body)
		}
	}
}

func TestMostLikelyDigitIsReturned(t *testing.T) {
	provide(t, func([]float32) {})
	got := call("POST", "/", `{"pixels": [[0, 255], [255, 0]]}`).Body.String()
	if !strings.HasPrefix(got, `{"digit":7,"confidence":0.55,"probabilities":[0.05,`) {
		t.Error(got)
	}
}

func TestMissingModelIsServerError(t *testing.T) {
	if answer := call("POST", "/", `{"pixels": [[0, 1]]}`); answer.Code != 500 {
		t.Error(answer.Code, answer.Body)
	}
}

// The preparation in ../classify-digits/model/train.py wrote the samples.
func TestSamplesArePreparedAsInTraining(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(folder + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var expected map[string]struct{ Input [][]float32 }
	if err := json.Unmarshal(read("expected.json"), &expected); err != nil || len(expected) != 10 {
		t.Fatal(err, len(expected))
	}
	for name, sample := range expected {
		seen := false
		provide(t, func(input []float32) {
			seen = true
			for at, value := range input {
				if math.Abs(float64(value-sample.Input[at/side][at%side])) >= 1e-5 {
					t.Errorf("%s differs at %d: %v", name, at, value)
				}
			}
		})
		if answer := call("POST", "/", string(read(name))); answer.Code != 200 || !seen {
			t.Errorf("%s: %d, %s", name, answer.Code, answer.Body)
		}
	}
}
