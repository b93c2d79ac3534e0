package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"
)

// Outcome is what became of one request.
type Outcome struct {
	// Err is why it failed, "" for success.
	Err string
	// Start is when it was sent, counted from the start of the measurement.
	Start time.Duration
	// TTFT is the time to the first piece of output, Latency to the last, ITL the gaps between
	// pieces.
	TTFT, Latency time.Duration
	ITL           []time.Duration
	// PromptLen and OutputLen are in tokens, as the server counts them if it does.
	PromptLen, OutputLen int
	Text                 string
}

// Target is a server and how it is asked.
type Target struct {
	Client *http.Client
	// URL is the full address of the endpoint, Model the name sent, Chat whether the endpoint takes
	// messages.
	URL, Model string
	Chat       bool
	// Header are further headers of each request.
	Header http.Header
	// Extra are further members of each request's body; they win over those made here.
	Extra map[string]any
	// Count counts the tokens of an output when the server does not; nil counts pieces.
	Count func(text string) int
}

// NewClient returns an HTTP client for measuring: no compression, and as many connections kept as
// are needed. An insecure one takes any certificate.
func NewClient(insecure bool) *http.Client {
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: insecure},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1 << 16, IdleConnTimeout: time.Minute}}
}

// StatusError is an answer other than 200.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Code, e.Message) }

// body builds the request of a sample.
func (t *Target) body(s Sample) ([]byte, error) {
	b := map[string]any{"model": cmp.Or(s.Model, t.Model), "stream": true,
		"stream_options": map[string]any{"include_usage": true}}
	if t.Chat {
		b["messages"] = []any{map[string]any{"role": "user", "content": s.Text}}
		b["max_completion_tokens"] = s.OutputLen
	} else {
		b["max_tokens"] = s.OutputLen
		b["prompt"] = any(s.Text)
		if s.Text == "" {
			b["prompt"] = s.Tokens
		}
	}
	maps.Copy(b, t.Extra)
	return json.Marshal(b)
}

// Do sends one request and times its answer. id, when not empty, is sent as X-Request-Id; begun is
// the start of the measurement.
func (t *Target) Do(ctx context.Context, s Sample, id string, started time.Time) Outcome {
	o, err := t.do(ctx, s, id, started)
	if err != nil {
		o.Err = err.Error()
	}
	return o
}

func (t *Target) do(ctx context.Context, s Sample, id string, started time.Time) (Outcome, error) {
	o := Outcome{PromptLen: s.PromptLen}
	raw, err := t.body(s)
	if err != nil {
		return o, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(raw))
	if err != nil {
		return o, err
	}
	r.Header.Set("Content-Type", "application/json")
	// A server may close an idle connection just when it is used again: an empty key, which is not
	// sent, lets the transport repeat a request that was never answered.
	r.Header["X-Idempotency-Key"] = []string{}
	maps.Copy(r.Header, t.Header)
	if id != "" {
		r.Header.Set("X-Request-Id", id)
	}
	start := time.Now()
	o.Start = start.Sub(started)
	resp, err := t.Client.Do(r)
	if err != nil {
		return o, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return o, statusError(resp)
	}
	return o, o.read(resp.Body, start, t.Count)
}

// statusError is the answer's error, with the message of OpenAI's error body when it is one.
func statusError(resp *http.Response) error {
	// What cannot be read of an error's text changes nothing: the status says it.
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	e := &StatusError{Code: resp.StatusCode, Message: strings.TrimSpace(string(raw))}
	if ev, err := parseEvent(raw); err == nil && ev.failure != "" {
		e.Message = ev.failure
	}
	return e
}

// errNoOutput is vLLM's "Never received a valid chunk to calculate TTFT".
var errNoOutput = errors.New("the answer had no output")

// largestEvent bounds one event of a stream.
const largestEvent = 16 << 20

// read follows the events of a streamed answer. As in vLLM's client each event with a choice is a
// piece, whatever its text; the event with nothing but the role of a chat is not, since no token
// was made for it.
func (o *Outcome) read(r io.Reader, start time.Time, count func(string) int) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), largestEvent)
	var last time.Time
	var text strings.Builder
	pieces, usage := 0, false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			continue
		}
		now := time.Now()
		e, err := parseEvent(data)
		if err != nil {
			return err
		}
		if e.failure != "" {
			return fmt.Errorf("server: %s", e.failure)
		}
		if e.usage {
			usage = true
			o.OutputLen = e.output
			if e.prompt > 0 {
				o.PromptLen = e.prompt
			}
		}
		if !e.piece {
			continue
		}
		text.WriteString(e.text)
		if pieces++; pieces == 1 {
			o.TTFT = now.Sub(start)
		} else {
			o.ITL = append(o.ITL, now.Sub(last))
		}
		last = now
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if pieces == 0 {
		return errNoOutput
	}
	o.Latency, o.Text = last.Sub(start), text.String()
	switch {
	case usage:
	case count != nil:
		o.OutputLen = count(o.Text)
	default:
		o.OutputLen = pieces
	}
	return nil
}
