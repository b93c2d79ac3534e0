package process

import (
	"os/exec"
	"testing"

	"github.com/eagleray/eagleray/internal/group/launch"
)

// TestEnd types how a child ended.
func TestEnd(t *testing.T) {
	for _, c := range []struct {
		script string
		want   launch.End
		text   string
	}{
		{"exit 0", launch.End{How: launch.Exited}, "exit status 0"},
		{"exit 3", launch.End{How: launch.Exited, Code: 3}, "exit status 3"},
		{"kill -9 $$", launch.End{How: launch.Signalled, Signal: "killed"}, "signal: killed"},
	} {
		cmd := exec.Command("/bin/sh", "-c", c.script)
		err := cmd.Run()
		if got := end(cmd.ProcessState, err); got != c.want || got.String() != c.text {
			t.Errorf("%s: %+v, %q", c.script, got, got)
		}
	}
	if got := end(nil, exec.ErrNotFound); got.How != launch.Unknown || got.String() == "" {
		t.Errorf("no state: %+v", got)
	}
}
