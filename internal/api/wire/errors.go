package wire

import (
	"fmt"
	"net/http"
	"strconv"
)

// Error is an answer other than success, in the shape OpenAI's clients parse:
// {"error":{"message","type","param","code"}} with vLLM's types, and as the code the HTTP status,
// or a word of OpenAI's.
type Error struct {
	Status  int
	Message string
	// Param is the field at fault, "" for none.
	Param string
	// Code is OpenAI's word for the error where clients look for one, "" for the status.
	Code string
	// RetryAfter is in seconds, 0 for no such header.
	RetryAfter int
	// Allow lists the methods of a route, for 405.
	Allow string
	// Expected says that the server is as it should be, full or about to end: no failure to log.
	Expected bool
}

func (e *Error) Error() string { return e.Message }

// StatusClientClosed is what the log shows when the client went away before an answer (nginx's
// convention).
const StatusClientClosed = 499

// BadRequest is a 400 that names the field at fault.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Param: param,
		Message: fmt.Sprintf(format, args...)}
}

// TooLong is the 400 of a request that does not fit into the model's context.
func TooLong(param, format string, args ...any) *Error {
	e := BadRequest(param, format, args...)
	e.Code = tooLong
	return e
}

// tooLong is OpenAI's code of TooLong.
const tooLong = "context_length_exceeded"

// IsTooLong says that a request with a shorter conversation might be answered; nil is no error.
func (e *Error) IsTooLong() bool { return e != nil && e.Code == tooLong }

// kind is vLLM's word for the error's class.
func (e *Error) kind() string {
	switch e.Status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusUnauthorized:
		return "AuthenticationError"
	case http.StatusForbidden:
		return "PermissionDeniedError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusMethodNotAllowed:
		return "MethodNotAllowedError"
	case http.StatusRequestTimeout:
		return "RequestTimeoutError"
	case http.StatusConflict:
		return "ConflictError"
	case http.StatusRequestEntityTooLarge:
		return "RequestEntityTooLargeError"
	case http.StatusUnsupportedMediaType:
		return "UnsupportedMediaTypeError"
	case http.StatusTooManyRequests:
		return "rate_limit_error" // OpenAI's: vLLM has no such error
	case http.StatusMisdirectedRequest:
		return "MisdirectedRequestError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	return "InternalServerError"
}

// OnWire is the error as a client sees it, should it still be there: 499 is for the log only.
func (e *Error) OnWire() *Error {
	if e.Status != StatusClientClosed {
		return e
	}
	return &Error{Status: http.StatusServiceUnavailable, Message: e.Message, RetryAfter: 1}
}

// MaxMessage bounds the message of an error, in bytes: a chat template may raise one as long as the
// conversation.
const MaxMessage = 1000

// Append writes the error object.
func (e *Error) Append(b []byte) []byte {
	b = append(b, `{"error":{"message":`...)
	b = AppendString(b, ClipTo(e.Message, MaxMessage))
	b = append(b, `,"type":`...)
	b = AppendString(b, e.kind())
	b = append(b, `,"param":`...)
	if e.Param == "" {
		b = append(b, "null"...)
	} else {
		b = AppendString(b, e.Param)
	}
	b = append(b, `,"code":`...)
	switch {
	case e.Code != "":
		b = AppendString(b, e.Code)
	case e.Status == http.StatusTooManyRequests:
		b = AppendString(b, "rate_limit_exceeded")
	default:
		b = strconv.AppendInt(b, int64(e.Status), 10)
	}
	return append(b, "}}"...)
}

// Cancelled is the answer to a request whose client went away before there was one.
func Cancelled() *Error {
	return &Error{Status: StatusClientClosed, Message: "request was cancelled"}
}

// Draining is the answer of a server that is being stopped.
func Draining() *Error {
	return &Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
		Message: "draining: the server is being stopped, and takes no new requests"}
}

// BrokenOff is the answer where the server ended what the model was saying.
func BrokenOff() *Error {
	return &Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
		Message: "the answer was broken off: the server is being stopped, is paused, or sleeps"}
}

// ErrorBody is the document that Append writes.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail is what is in it. Code is the HTTP status, or a word of OpenAI's.
type ErrorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    any     `json:"code"`
}
