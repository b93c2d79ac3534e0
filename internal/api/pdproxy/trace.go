package pdproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Trace writes what becomes of split answers as a list of events in Chrome's trace format, which
// chrome://tracing and Perfetto show: the prefill, the wait for the decode server's answer to begin
// (transfer of the blocks and first token), and the rest of it.
type Trace struct {
	mu    sync.Mutex
	to    io.Writer
	begun time.Time
	many  int
}

// NewTrace begins the list. Viewers do without its end.
func NewTrace(to io.Writer) (*Trace, error) {
	_, err := io.WriteString(to, "[\n")
	return &Trace{to: to, begun: time.Now()}, err
}

// Add adds an answer; it is for Options.OnSplit.
func (t *Trace) Add(x Times) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.many++
	for _, e := range []struct {
		name, server string
		from, to     time.Time
	}{
		{"prefill", x.Prefill, x.Asked, x.Computed},
		{"transfer, first token", x.Decode, x.Computed, x.Begun},
		{"decode", x.Decode, x.Begun, x.Over},
	} {
		text, err := json.Marshal(map[string]any{
			"name": e.name, "ph": "X", "pid": e.server, "tid": t.many,
			"ts":  e.from.Sub(t.begun).Microseconds(),
			"dur": e.to.Sub(e.from).Microseconds(),
		})
		if err == nil {
			fmt.Fprintf(t.to, "%s,\n", text)
		}
	}
}
