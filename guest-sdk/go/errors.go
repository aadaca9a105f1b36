package weir

import (
	"errors"
	"fmt"
)

// A Code says why something could not be done. It is an error itself, so that errors.Is(err, weir.NotFound) asks for it.
type Code uint8

const (
	// InvalidArgument: it is wrong in itself, such as a shape that does not fit the data. Answers 400.
	InvalidArgument Code = iota
	// NotFound: no model of that name, or no such version of it, is deployed. Answers 500.
	NotFound
	// NotGranted: the model exists, but the function's manifest does not grant it. Answers 500.
	NotGranted
	// ResourceExhausted: a limit of the function or of the node is used up. Answers 503.
	ResourceExhausted
	// DeadlineExceeded: the deadline of the run, or of the whole invocation, passed first. Answers 504.
	DeadlineExceeded
	// Cancelled: the run was cancelled, by the function or because the client went away. Answers 503.
	Cancelled
	// Unavailable: it may work later; safe to try again. Answers 503.
	Unavailable
	// Internal: the model itself failed, or the node has a fault. Answers 500.
	Internal
)

var codes = [...]struct {
	text   string
	status int
}{
	{"invalid argument", 400}, {"not found", 500}, {"not granted", 500}, {"resource exhausted", 503},
	{"deadline exceeded", 504}, {"cancelled", 503}, {"unavailable", 503}, {"internal error", 500},
}

// Error gives the code as people read it.
func (c Code) Error() string {
	if int(c) < len(codes) {
		return codes[c].text
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// An Error is what the node refused, or what a function answers with. Find one with errors.As.
type Error struct {
	// Code is why.
	Code Code
	// Status is the HTTP status that answers for it.
	Status int
	// Message is for people.
	Message string

	cause error
}

// Errorf makes an error with a code and its status. %w wraps, as in fmt.Errorf.
func Errorf(code Code, format string, arguments ...any) error {
	wrapping := fmt.Errorf(format, arguments...)
	return &Error{code, codes[min(code, Internal)].status, wrapping.Error(), errors.Unwrap(wrapping)}
}

// StatusErrorf makes an error that answers with an HTTP status from 400 up and a text for whoever asked. %w wraps, as in fmt.Errorf.
func StatusErrorf(status int, format string, arguments ...any) error {
	code := Internal
	if status >= 400 && status < 500 {
		code = InvalidArgument
	}
	wrapping := fmt.Errorf(format, arguments...)
	return &Error{code, status, wrapping.Error(), errors.Unwrap(wrapping)}
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Unwrap gives what the error was made of.
func (e *Error) Unwrap() error { return e.cause }

// Is tells whether target is the error's code.
func (e *Error) Is(target error) bool {
	code, is := target.(Code)
	return is && code == e.Code
}
