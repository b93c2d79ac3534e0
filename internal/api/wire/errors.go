package openai

import (
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an answer other than success, in the shape OpenAI's clients parse:
// {"error":{"message","type","param","code"}} with vLLM's types and the HTTP status as the code.
type apiError struct {
	status  int
	message string
	// param is the field at fault, "" for none.
	param string
	// retryAfter is in seconds, 0 for no such header.
	retryAfter int
	// allow lists the methods of a route, for 405.
	allow string
	// expected says that the server is as it should be, full or about to end: no failure to log.
	expected bool
}

func (e *apiError) Error() string { return e.message }

// statusClientClosed is what the log shows when the client went away before an answer (nginx's
// convention).
const statusClientClosed = 499

// badRequest is a 400 that names the field at fault.
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, param: param,
		message: fmt.Sprintf(format, args...)}
}

// kind is vLLM's word for the error's class.
func (e *apiError) kind() string {
	switch e.status {
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
	case http.StatusMisdirectedRequest:
		return "MisdirectedRequestError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	return "InternalServerError"
}

// onWire is the error as a client sees it, should it still be there: 499 is for the log only.
func (e *apiError) onWire() *apiError {
	if e.status != statusClientClosed {
		return e
	}
	return &apiError{status: http.StatusServiceUnavailable, message: e.message, retryAfter: 1}
}

// maxMessage bounds the message of an error, in bytes: a chat template may raise one as long as the
// conversation.
const maxMessage = 1000

// append writes the error object.
func (e *apiError) append(b []byte) []byte {
	b = append(b, `{"error":{"message":`...)
	b = appendString(b, clipTo(e.message, maxMessage))
	b = append(b, `,"type":`...)
	b = appendString(b, e.kind())
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, e.param)
	}
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	return append(b, "}}"...)
}

// cancelled is the answer to a request whose client went away before there was one.
func cancelled() *apiError {
	return &apiError{status: statusClientClosed, message: "request was cancelled"}
}

// draining is the answer of a server that is being stopped.
func draining() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, retryAfter: 1, expected: true,
		message: "draining: the server is being stopped, and takes no new requests"}
}
