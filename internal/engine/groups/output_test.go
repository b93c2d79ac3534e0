package groups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
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

// noRanks is a launcher whose ranks do not start.
type noRanks struct{ cause error }

func (l noRanks) Launch(context.Context, []launch.Spec) ([]launch.Worker, error) {
	return nil, l.cause
}

func (noRanks) Exited() <-chan launch.Exit { return nil }

func (noRanks) Stop(context.Context, error) error { return nil }

// TestDetailsAreLoggedOnce has the first start tell of its failure, and a later one leave that to
// Failed.
func TestDetailsAreLoggedOnce(t *testing.T) {
	cause := &executor.Failure{Rank: 1, Cause: "panic: out of cheese", Detail: "goroutine 1\n"}
	for name, before := range map[string]error{"first": nil, "later": cause} {
		var events []string
		s := Supervisor{
			Options: func(context.Context, executor.Launcher) (o executor.Options, err error) {
				o.Launcher, o.InProcess = noRanks{cause}, true
				o.Init.Layout = layout.Layout{TP: 2}
				return o, nil
			},
			files:  func(*queue.Init) (int64, error) { return 0, nil },
			events: func(e status.Event) { events = append(events, fmt.Sprintf("%T", e)) },
		}
		_, err := s.Start(t.Context(), before)
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
		if before != nil {
			s.Failed(err)
		}
		if n := strings.Count(fmt.Sprint(events), "RankOutput"); n != 1 {
			t.Errorf("%s: %v", name, events)
		}
	}
}
