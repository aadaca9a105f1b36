package weir

import (
	"errors"
	"fmt"
)

// A Code classifies an error. It is an error itself, so that errors.Is(err, weir.NotFound) tests
// for it.
type Code uint8

const (
	// InvalidArgument: an argument is invalid, such as a shape that does not match the data. Status
	// 400, or 500 if it is an argument of a model run.
	InvalidArgument Code = iota
	// NotFound: no model of that name, or no such version of it, is deployed. Status 500.
	NotFound
	// NotGranted: the model exists, but the function's manifest does not grant access to it. Status
	// 500.
	NotGranted
	// ResourceExhausted: a limit of the function or of the node is exhausted. Status 503.
	ResourceExhausted
	// DeadlineExceeded: the deadline of the run or of the invocation has passed. Status 504.
	DeadlineExceeded
	// Cancelled: the run was cancelled, by the function or because the client disconnected. Status
	// 503.
	Cancelled
	// Unavailable: a temporary failure; the call is safe to retry. Status 503.
	Unavailable
	// Internal: the model failed, or the node has an internal error. Status 500.
	Internal
)

var codes = [...]struct {
	text   string
	status int
}{
	{"invalid argument", 400}, {"not found", 500}, {"not granted", 500}, {"resource exhausted", 503},
	{"deadline exceeded", 504}, {"cancelled", 503}, {"unavailable", 503}, {"internal error", 500},
}

// Error returns the text of the code.
func (c Code) Error() string {
	if int(c) < len(codes) {
		return codes[c].text
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// An Error is an error of a call to the node, or an error response of a function. Use errors.As to
// extract it.
type Error struct {
	// Code classifies the error.
	Code Code
	// Status is the HTTP status of the error response.
	Status int
	// Message describes the error for people.
	Message string

	cause error
}

// Errorf creates an error with a code and the status of that code. %w wraps an error, as in
// fmt.Errorf.
func Errorf(code Code, format string, arguments ...any) error {
	wrapping := fmt.Errorf(format, arguments...)
	return &Error{code, codes[min(code, Internal)].status, wrapping.Error(), errors.Unwrap(wrapping)}
}

// ofRun marks invalid arguments of a model run as a failure of the function, which chose them.
func ofRun(err error) error {
	if known := new(Error); errors.As(err, &known) && known.Code == InvalidArgument {
		return &Error{InvalidArgument, codes[Internal].status, err.Error(), err}
	}
	return err
}

// StatusErrorf creates an error response with an HTTP status of 400 or higher and a text for the
// client. %w wraps an error, as in fmt.Errorf.
func StatusErrorf(status int, format string, arguments ...any) error {
	code := Internal
	if status >= 400 && status < 500 {
		code = InvalidArgument
	}
	wrapping := fmt.Errorf(format, arguments...)
	return &Error{code, status, wrapping.Error(), errors.Unwrap(wrapping)}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is the error's code.
func (e *Error) Is(target error) bool {
	code, is := target.(Code)
	return is && code == e.Code
}
