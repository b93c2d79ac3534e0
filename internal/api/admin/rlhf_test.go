package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// TestSteerErrors: whatever goes wrong, who steers the server is told what.
func TestSteerErrors(t *testing.T) {
	trained := trainer{Server: server.New(server.Options{Classify: generate.StatusOf,
		Log: slog.New(slog.DiscardHandler)})}
	lost := &executor.Failure{Rank: 1, Node: "localhost", PID: 7, Phase: "call",
		Cause: "signal: killed"}
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{&state.WrongOrder{Asked: "a", State: "b", Next: "c"}, 409, "a: b; c"},
		{&weights.MismatchError{First: []string{"x"}, Count: 1}, 400,
			"differ from the model's in 1 tensors: x"},
		{&rlhf.SourceError{Err: errors.New("no weight")}, 400, "no weight"},
		{lost, 500, "rank 1 on localhost (pid 7), call: signal: killed"},
		{&executor.RPCError{Method: "weights_load", Rank: 1, Type: "x", Message: "no memory"}, 500,
			"no memory"},
		{fmt.Errorf("%w: %w", engine.ErrFailed, lost), 500, "engine failed: rank 1"},
		{engine.ErrStopped, 503, "draining"},
		{errors.New("make 7 bytes of memory for weights"), 500, "make 7 bytes of memory"},
	} {
		var api *wire.Error
		if err := trained.steerError(c.err); !errors.As(err, &api) || api.Status != c.status ||
			!strings.Contains(api.Message, c.want) {
			t.Errorf("%v: %+v, not %d %q", c.err, api, c.status, c.want)
		}
	}
}
