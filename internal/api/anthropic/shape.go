package anthropic

import (
	"net/http"
	"strings"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

const (
	// versionHeader is the header that every client of Anthropic's API must send.
	versionHeader = "Anthropic-Version"
	// idHeader names a request in its answer.
	idHeader = "Request-Id"
)

// ShapeOf is the shape of the answers to Anthropic's clients, who say which version of the API they
// speak or ask one of its routes; nil for others. A key in X-Api-Key alone is no sign of them:
// gateways send it for clients of any kind.
func ShapeOf(path string, h http.Header) *server.Shape {
	ours := path == MessagesPath || strings.HasPrefix(path, MessagesPath+"/")
	if ours || h.Get(versionHeader) != "" {
		return &shape
	}
	return nil
}

// shape is that of Anthropic's API: its requests have names, and its errors a form of their own.
var shape = server.Shape{
	Begin:      func(h http.Header, id string) { h.Set(idHeader, "req_"+id) },
	ErrorEvent: "error",
	Error: func(h http.Header, e *wire.Error) (int, []byte) {
		status := e.Status
		if status == http.StatusServiceUnavailable {
			status = statusOverloaded
		}
		return status, appendError(nil, h, e)
	},
}

// statusOverloaded is the status of errors that others answer 503 with.
const statusOverloaded = 529

// kindOf is the error's class in Anthropic's words.
func kindOf(e *wire.Error) string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestTimeout:
		return "timeout_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if e.Status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

// ErrorBody is the error object of Anthropic's API.
type ErrorBody struct {
	Type      string      `json:"type"`
	Error     errorDetail `json:"error"`
	RequestID string      `json:"request_id"`
}

type errorDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// appendError writes an ErrorBody; h names the request.
func appendError(b []byte, h http.Header, e *wire.Error) []byte {
	b = wire.AppendString(append(b, `{"type":"error","error":{"type":`...), kindOf(e))
	b = wire.AppendString(append(b, `,"message":`...), wire.ClipTo(e.Message, wire.MaxMessage))
	b = wire.AppendString(append(b, `},"request_id":`...), h.Get(idHeader))
	return append(b, '}')
}
