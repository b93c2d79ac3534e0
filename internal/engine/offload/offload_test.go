package offload

import (
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/offload"
)

// TestFindHangs has the driver's disk hang while a prompt is looked up: the request that meets it
// waits for the limit and is computed, those after it do not wait, one failure is told, and what is
// stored is found again when the disk has answered.
func TestFindHangs(t *testing.T) {
	told := make(chan status.Event, 8)
	tier := &Tier{cache: kvcache.Config{BlockSize: 4},
		opt:     Options{Events: func(e status.Event) { told <- e }},
		looking: offload.Patience{Limit: 50 * time.Millisecond}}
	hang, hung := make(chan struct{}), make(chan struct{})
	tier.view.Store(&view{has: func(offload.Digest) bool {
		<-hang
		return true
	}})
	find := func() (remote int, took time.Duration) {
		q := &schedule.Request{Prompt: make([]int32, 13)} // three blocks, and a token
		began := time.Now()
		tier.Find(q)
		return q.Remote, time.Since(began)
	}
	if n, took := find(); n != 0 || took < tier.looking.Limit {
		t.Errorf("%d tokens are found in %v on a disk that hangs", n, took)
	}
	for range 100 {
		go func() { // the last of them tells that none has waited
			find()
			hung <- struct{}{}
		}()
	}
	late := time.After(10 * time.Second)
	for range 100 {
		select {
		case <-hung:
		case <-late:
			t.Fatal("a request waits for a disk that is known to hang")
		}
	}
	if n := len(told); n != 1 {
		t.Errorf("%d failures are told", n)
	}
	if e, ok := (<-told).(status.OffloadLoaded); !ok || e.Of != 3 || e.Err == nil ||
		!strings.Contains(e.Err.Error(), "no answer within 50ms") {
		t.Errorf("%+v is told", e)
	}
	close(hang)
	for n := 0; n == 0; {
		select {
		case <-late:
			t.Fatal("nothing is found after the disk has answered")
		default:
			n, _ = find()
			if n != 0 && n != 12 {
				t.Errorf("%d of 12 tokens are found", n)
			}
		}
	}
}
