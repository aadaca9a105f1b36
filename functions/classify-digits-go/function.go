// classify-digits-go recognises one handwritten digit, like ../classify-digits: it takes a PNG or
// rows of grey and returns JSON.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	weir "github.com/weir-platform/weir/guest-sdk/go"
	"github.com/weir-platform/weir/guest-sdk/go/weirhttp"
)

const usage = `classify-digits-go reads one handwritten digit.

  curl --data-binary @3.png URL                                 a PNG of any size and colour
  curl -d '{"pixels": [[0, 9, 3, ...], ...]}' URL               rows of grey, of any scale and size

Dark on light and light on dark are both fine. The answer is JSON:

  {"digit": 3, "confidence": 0.99, "probabilities": [ten numbers, for 0 to 9]}
`

func init() { weirhttp.Serve(http.HandlerFunc(handle)) }

func main() {}

// classification is the recognised digit.
type classification struct {
	Digit         int         `json:"digit"`
	Confidence    float32     `json:"confidence"`
	Probabilities [10]float32 `json:"probabilities"`
}

func handle(w http.ResponseWriter, r *http.Request) {
	if asks := r.Method == http.MethodGet || r.Method == http.MethodHead; asks && isServed(r.URL.Path) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, usage)
		return
	}
	found, err := classify(r)
	if err != nil {
		status := http.StatusInternalServerError
		if known := new(weir.Error); errors.As(err, &known) {
			status = known.Status
		}
		reply(w, status, map[string]string{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, found)
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

func isServed(path string) bool { return path == "" || path == "/" || path == "/classify" }

func classify(r *http.Request) (*classification, error) {
	if !isServed(r.URL.Path) {
		return nil, weir.StatusErrorf(404, "there is nothing at this path; send the picture to /")
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return nil, weir.StatusErrorf(405, "use POST with a picture, or GET for help")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	seen, err := pictureOf(body)
	if err != nil {
		return nil, err
	}
	input, is := prepare(seen)
	if !is {
		return nil, weir.StatusErrorf(422, "the picture is blank: there is no digit on it")
	}
	probabilities, err := infer(input)
	if err != nil {
		return nil, modelFailed(err)
	}
	return likeliest(probabilities), nil
}

// pictureOf detects the type of the body from its content, since clients often send a wrong
// content-type.
func pictureOf(body []byte) (*picture, error) {
	if bytes.HasPrefix(body, []byte("\x89PNG\r\n\x1a\n")) {
		return fromPNG(body)
	}
	trimmed := bytes.TrimLeft(body, " \t\r\n\f")
	switch {
	case len(trimmed) == 0:
		return nil, weir.StatusErrorf(400, `the body is empty: send a PNG, or JSON like {"pixels": [[0, 1], [1, 0]]}`)
	case trimmed[0] != '{':
		return nil, weir.StatusErrorf(415, "the body is neither a PNG nor a JSON object")
	}
	return fromJSON(body)
}

// infer returns the probability of each digit from 0 to 9.
func infer(input []float32) ([]float32, error) {
	image, err := weir.New(input, 1, 1, side, side)
	if err != nil {
		return nil, err
	}
	model, err := weir.Open("digits")
	if err != nil {
		return nil, err
	}
	outputs, err := model.Infer(weir.Tensors{"image": image})
	if err != nil {
		return nil, err
	}
	found, err := outputs.Get("probabilities")
	if err != nil {
		return nil, err
	}
	probabilities, err := weir.Values[float32](found)
	if err == nil && len(probabilities) != 10 {
		err = weir.Errorf(weir.Internal, "the model gave %d numbers, not ten", len(probabilities))
	}
	return probabilities, err
}

// modelFailed describes why the model could not be run. The function chooses the model's input, so
// a rejected input is not the client's fault.
func modelFailed(err error) error {
	status := http.StatusInternalServerError
	if known := new(weir.Error); errors.As(err, &known) {
		status = max(status, known.Status)
	}
	return weir.StatusErrorf(status, "the model `digits` cannot be run: %w", err)
}

func likeliest(probabilities []float32) *classification {
	var found classification
	for digit, probability := range probabilities {
		if probability >= probabilities[found.Digit] {
			found.Digit = digit
		}
		found.Probabilities[digit] = rounded(probability)
	}
	found.Confidence = found.Probabilities[found.Digit]
	return &found
}

// rounded rounds to six decimals: further digits are noise, and hard to read.
func rounded(probability float32) float32 {
	return float32(math.Round(float64(probability*1e6))) / 1e6
}

// fromJSON parses rows of grey.
func fromJSON(body []byte) (*picture, error) {
	var rows struct {
		Pixels [][]float64 `json:"pixels"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&rows)
	if err == nil && decoder.More() {
		err = errors.New("there is more behind it")
	}
	// encoding/json converts null to zero.
	if err == nil && bytes.Contains(body, []byte("null")) {
		err = errors.New("null is no number")
	}
	if err != nil {
		return nil, weir.StatusErrorf(400, "the JSON cannot be used: %w", err)
	}
	return fromRows(rows.Pixels)
}

func tooLarge(width, height int) error {
	return weir.StatusErrorf(413, "the picture has %d x %d pixels; at most %d in all are taken", width, height, pixelsMax)
}

func damaged(err error) error {
	return weir.StatusErrorf(400, "this is not a PNG that can be read: %s", fmt.Sprint(err))
}
