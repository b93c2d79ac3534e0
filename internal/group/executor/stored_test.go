package executor

import (
	"encoding/json"
	"testing"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// TestStored wants all stored when each rank that stored packed weights has said that it is
// over, which may come before it is ready.
func TestStored(t *testing.T) {
	for name, c := range map[string]struct {
		records []any // of ranks 0 and 1 by turns
		settled bool
	}{
		"none stores": {[]any{queue.Ready{}, queue.Ready{}}, true},
		"both do":     {[]any{queue.Ready{Storing: true}, queue.Ready{Storing: true}}, false},
		"one has ended": {[]any{queue.Ready{Storing: true}, queue.Ready{Storing: true},
			queue.WeightsCache{Over: true, Stored: true}}, false},
		"both have": {[]any{queue.Ready{Storing: true}, queue.Ready{Storing: true},
			queue.WeightsCache{Over: true, Failure: "full"}, queue.WeightsCache{Over: true}}, true},
		"before they are ready": {[]any{queue.WeightsCache{Over: true},
			queue.WeightsCache{Over: true}, queue.Ready{Storing: true}, queue.Ready{}}, true},
		"what was found is not the end": {[]any{queue.WeightsCache{Failure: "damaged"},
			queue.WeightsCache{Found: true}, queue.Ready{Storing: true}, queue.Ready{}}, false},
	} {
		e := &Executor{loading: newLoading(2)}
		for i, r := range c.records {
			kind := queue.KindReady
			if _, ok := r.(queue.WeightsCache); ok {
				kind = queue.KindWeightsCache
			}
			body, err := json.Marshal(r)
			if err == nil {
				err = e.handle(i%2, kind, body)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		select {
		case <-e.Stored():
			if !c.settled {
				t.Errorf("%s: settled", name)
			}
		default:
			if c.settled {
				t.Errorf("%s: not settled", name)
			}
		}
	}
}
