package attach

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// answer is an http.ResponseWriter whose answer goes to the program: the events of a stream as they
// come, everything else at the end.
type answer struct {
	id     int64
	out    *sender
	header http.Header
	status int
	// events says that the answer is a stream of them; body then holds one that is not whole yet.
	events bool
	body   bytes.Buffer
	frame  []byte
}

// serve has the request answered. A handler that gives up in the middle of a stream panics with
// http.ErrAbortHandler.
func (a *answer) serve(answers http.Handler, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				panic(v)
			}
			a.status = http.StatusInternalServerError
			a.header.Set("Content-Type", "application/json")
			a.events = false
			a.body.Reset()
			a.body.WriteString(`{"error":{"message":"the answer broke off","type":` +
				`"InternalServerError","param":null,"code":500}}`)
		}
	}()
	answers.ServeHTTP(a, r)
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		a.events = strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream")
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.body.Write(b)
	for a.events {
		event, _, whole := bytes.Cut(a.body.Bytes(), []byte("\n\n"))
		if !whole {
			break
		}
		if err := a.event(event); err != nil {
			return 0, err
		}
		a.body.Next(len(event) + 2)
	}
	return len(b), nil
}

// Flush implements http.Flusher: every event is sent as it comes.
func (a *answer) Flush() {}

// event sends the data of an event, JSON; OpenAI's mark of the end of a stream is none.
func (a *answer) event(lines []byte) error {
	for line := range bytes.Lines(lines) {
		data, is := bytes.CutPrefix(bytes.TrimRight(line, "\n"), []byte("data: "))
		if !is || data[0] != '{' {
			continue
		}
		a.frame = append(a.frame[:0], `{"id":`...)
		a.frame = strconv.AppendInt(a.frame, a.id, 10)
		a.frame = append(a.frame, `,"event":`...)
		a.frame = append(a.frame, data...)
		a.frame = append(a.frame, '}')
		if err := a.out.send(a.frame); err != nil {
			return err
		}
	}
	return nil
}

// end sends the answer, or the end of the stream. Whatever is not JSON is sent as a string.
func (a *answer) end() {
	a.WriteHeader(http.StatusOK)
	b := append(a.frame[:0], `{"id":`...)
	b = strconv.AppendInt(b, a.id, 10)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(a.status), 10)
	switch text := bytes.TrimSpace(a.body.Bytes()); {
	case a.events, len(text) == 0:
	case strings.HasPrefix(a.header.Get("Content-Type"), "application/json"):
		b = append(append(b, `,"body":`...), text...)
	default:
		quoted, err := json.Marshal(string(text))
		if err == nil {
			b = append(append(b, `,"body":`...), quoted...)
		}
	}
	_ = a.out.send(append(b, '}')) // a program that is gone waits for nothing
}
