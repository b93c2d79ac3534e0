package worker

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
)

// TestJoinServes is a rank over a ring and over a link, from its invitation to the end of its
// driver.
func TestJoinServes(t *testing.T) {
	for name, links := range map[string]bool{"ring": false, "link": true} {
		t.Run(name, func(t *testing.T) {
			o := join.Options{QueueMemory: 16 << 20, LinksOnly: links,
				Timeout: time.Minute,
				Log:     slog.New(slog.NewTextHandler(io.Discard, nil))}
			if links {
				o.Address = "127.0.0.1"
			}
			d, err := join.Listen(o)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			next := make(chan *join.Invitation, 1)
			next <- d.Invitation(0)
			go func() {
				ended <- Serve(func() (join.Invitation, error) {
					if inv := <-next; inv != nil {
						return *inv, nil
					}
					return join.Invitation{}, io.EOF
				}, nil, nil)
			}()
			if err := d.Admit(t.Context()); err != nil {
				t.Fatal(err)
			}
			hub := d.Open()
			serve(t, hub)
			if err := hub.Close(); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			close(next)
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("a driver that goes away: %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the rank goes on without its driver")
			}
		})
	}
}

// serve starts the rank at the other end of hub, and calls it with arguments that fill the ring:
// they are given back before the next record is waited for.
func serve(t *testing.T, hub queue.Hub) {
	t.Helper()
	record, err := queue.AppendJSON(nil, queue.KindInit, tiny())
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Send(record, soon()); err != nil {
		t.Fatal(err)
	}
	for kind := queue.Kind(0); kind != queue.KindReady; {
		_, got, err := hub.Recv(soon())
		if err != nil {
			t.Fatal(err)
		}
		if kind, _, err = queue.Split(got); err != nil || kind == queue.KindFailure {
			t.Fatalf("%q, %v", got, err)
		}
	}
	call := queue.AppendCall(nil, &queue.Call{ID: 1, Method: "echo", Args: make([]byte, 600<<10)})
	for range 40 {
		if err := hub.Send(call, soon()); err != nil {
			t.Fatal(err)
		}
		if _, got, err := hub.Recv(soon()); err != nil || len(got) < 600<<10 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}
