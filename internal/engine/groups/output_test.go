package groups

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
)

func TestDetailsAreLogged(t *testing.T) {
	for _, c := range []struct {
		node string
		want []string
	}{
		{"localhost", []string{"detail", "detail"}}, // its output has been seen
		{"node-a", []string{"detail", "detail", "last output"}},
	} {
		var log bytes.Buffer
		emitOutput(status.LogTo(slog.New(slog.NewTextHandler(&log, nil))), fmt.Errorf("step 7: %w",
			&executor.Failure{Rank: 1,
				Node: c.node, PID: 9, Cause: "panic: out of cheese",
				Detail: "goroutine 1\nmain.main()\n", Stderr: []string{"rip 0"}}))
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != len(c.want) {
			t.Fatalf("%s: %d lines, want %d:\n%s", c.node, len(lines), len(c.want), &log)
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) || !strings.Contains(lines[i],
				"rank=1 node="+c.node+" pid=9 line=") {
				t.Errorf("%s: line %q, want %q", c.node, lines[i], want)
			}
		}
	}
}
