package raytest

import (
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
)

// exitPatience is for an end that Ray tells of: seconds, on an idle machine.
const exitPatience = 2 * time.Minute

// NextExit waits for a bridge's client to deliver the end of a rank.
func NextExit(t *testing.T, c *ray.Client) ray.Exit {
	t.Helper()
	select {
	case e, open := <-c.Exits():
		if !open {
			t.Fatal("exits closed")
		}
		return e
	case <-time.After(exitPatience):
		t.Fatal("no exit")
	}
	panic("unreachable")
}
