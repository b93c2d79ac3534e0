package batch

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// Row is a request of a batch: a line of its input.
type Row struct {
	// Line is its number in the input, from 1.
	Line int
	// CustomID is the client's name for it, nil for none.
	CustomID *string
	Method   string
	URL      string
	// Model is that of the body, "" for none.
	Model string
	Body  json.RawMessage
	// Problem is why it is no row, nil if it is one.
	Problem *Problem

	// refused is why the row is not asked, "" if it is: what its route would answer fits no line.
	refused string
	sum     uint32
}

// Problem is an error of a row, or of a batch, in OpenAI's words.
type Problem struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	// Line is the row's number, nil where it is the whole batch.
	Line *int `json:"line"`
}

// Codes of problems, OpenAI's.
const (
	CodeJSON      = "invalid_json_line"
	CodeMissing   = "missing_required_parameter"
	CodeValue     = "invalid_value"
	CodeMethod    = "invalid_method"
	CodeURL       = "url_mismatch"
	CodeModel     = "model_mismatch"
	CodeDuplicate = "duplicate_custom_id"
	CodeTooMany   = "too_many_tasks"
	CodeEmpty     = "empty_file"
	CodeLong      = "line_too_long"
	CodeExpired   = "batch_expired"
	CodeCancelled = "batch_cancelled"
)

// maxCustomID bounds the bytes of a custom_id.
const maxCustomID = 512

func problem(line int, code, param, format string, args ...any) *Problem {
	p := &Problem{Code: code, Message: fmt.Sprintf(format, args...), Line: &line}
	if param != "" {
		p.Param = &param
	}
	return p
}

// sumOf recognises a line of an input; it is never 0.
func sumOf(line []byte) uint32 { return max(1, crc32.ChecksumIEEE(line)) }

// longRow is the row of a line that was too long to be read.
func longRow(number, most int) *Row {
	return &Row{Line: number, sum: 1,
		Problem: problem(number, CodeLong, "", "This line is longer than %d bytes.", most)}
}

// parseRow reads a line of an input. The row keeps nothing of it.
func parseRow(line []byte, number int) *Row {
	r := &Row{Line: number, sum: sumOf(line)}
	var in struct {
		CustomID *string         `json:"custom_id"`
		Method   *string         `json:"method"`
		URL      *string         `json:"url"`
		Body     json.RawMessage `json:"body"`
	}
	line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	if err := json.Unmarshal(line, &in); err != nil || !utf8.Valid(line) {
		r.Problem = problem(number, CodeJSON, "", "This line is not parseable as valid JSON%s",
			why(err))
		return r
	}
	r.CustomID, r.Body = in.CustomID, in.Body
	if in.Method != nil {
		r.Method = *in.Method
	}
	if in.URL != nil {
		r.URL = *in.URL
	}
	r.Problem = r.check(in.Method == nil)
	return r
}

// why is what to say of a text that is no row.
func why(err error) string {
	if err == nil {
		return ": it is not UTF-8."
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) { // its own text is about types of Go
		return fmt.Sprintf(": %s must not be of type %s.", cmp.Or(kind.Field, "a row"), kind.Value)
	}
	return ": " + strings.TrimPrefix(err.Error(), "json: ") + "."
}

func (r *Row) check(noMethod bool) *Problem {
	switch {
	case r.CustomID == nil:
		return problem(r.Line, CodeMissing, "custom_id", "Missing required parameter: 'custom_id'.")
	case *r.CustomID == "" || len(*r.CustomID) > maxCustomID:
		id := (*r.CustomID)[:min(len(*r.CustomID), maxCustomID)]
		r.CustomID = &id
		return problem(r.Line, CodeValue, "custom_id", "'custom_id' must have 1 to %d bytes.",
			maxCustomID)
	case noMethod:
		return problem(r.Line, CodeMissing, "method", "Missing required parameter: 'method'.")
	case r.Method != "POST":
		return problem(r.Line, CodeMethod, "method",
			"Invalid method %.20q: only POST is supported.", r.Method)
	case r.URL == "":
		return problem(r.Line, CodeMissing, "url", "Missing required parameter: 'url'.")
	case r.Body == nil:
		return problem(r.Line, CodeMissing, "body", "Missing required parameter: 'body'.")
	}
	var body struct {
		Model      any `json:"model"`
		Stream     any `json:"stream"`
		Background any `json:"background"`
	}
	if r.Body[0] != '{' || json.Unmarshal(r.Body, &body) != nil {
		return problem(r.Line, CodeValue, "body", "'body' must be a JSON object.")
	}
	r.Model, _ = body.Model.(string)
	switch {
	case body.Stream == true:
		r.refused = "'stream' must not be true in a batch."
	case body.Background == true:
		r.refused = "'background' must not be true in a batch."
	}
	return nil
}

const idPrefix = "batch_req_"

// rowID is the id of the line that answers a row: the row's number and sum, by which it is known
// again, and random bits.
func rowID(number int, sum uint32) string {
	var b [16]byte
	binary.BigEndian.PutUint32(b[:], uint32(number))
	binary.BigEndian.PutUint32(b[4:], sum)
	binary.BigEndian.PutUint64(b[8:], rand.Uint64())
	return idPrefix + hex.EncodeToString(b[:])
}

// parseID takes an id of rowID apart.
func parseID(id string) (number int, sum uint32, ok bool) {
	digits, ours := strings.CutPrefix(id, idPrefix)
	b, err := hex.DecodeString(digits)
	if !ours || err != nil || len(b) != 16 {
		return 0, 0, false
	}
	return int(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:]), true
}

// Answer is what a server said to a row.
type Answer struct {
	Status    int
	RequestID string
	// Body is a JSON text.
	Body json.RawMessage
}

// ok says that the row succeeded.
func (a *Answer) ok() bool { return a.Status >= 200 && a.Status < 300 }

// outcome is a line of an output.
type outcome struct {
	ID       string    `json:"id"`
	CustomID *string   `json:"custom_id"`
	Response *response `json:"response"`
	Error    *fault    `json:"error"`
}

type response struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

type fault struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// line is an outcome as a line of the output.
func (o *outcome) line() ([]byte, error) { return jsonLine(o) }

// answered is the outcome of a row that a server has answered.
func (r *Row) answered(a *Answer) *outcome {
	return &outcome{ID: rowID(r.Line, r.sum), CustomID: r.CustomID,
		Response: &response{a.Status, a.RequestID, a.Body}}
}

// unanswered is the outcome of a row that was not asked.
func (r *Row) unanswered(code, message string) *outcome {
	return &outcome{ID: rowID(r.Line, r.sum), CustomID: r.CustomID, Error: &fault{code, message}}
}
