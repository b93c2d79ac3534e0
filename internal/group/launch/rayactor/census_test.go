package rayactor

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
)

// TestCensus: no engine is told before all are placed, and all are told the same. One that is
// placed again waits for none.
func TestCensus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCensus(3)
		type answer struct {
			nodes map[string]int
			err   error
		}
		answers := make(chan answer, 3)
		count := func(ctx context.Context, engine int, nodes ...string) {
			all, err := c.Count(ctx, engine, nodes)
			answers <- answer{all, err}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go count(ctx, 0, "a", "b")
		go count(t.Context(), 1, "a", "a")
		synctest.Wait()
		if len(answers) > 0 {
			t.Fatal("told before all are placed")
		}
		cancel() // one gives up, and comes again
		if a := <-answers; !errors.Is(a.err, context.Canceled) {
			t.Errorf("answer %+v", a)
		}
		go count(t.Context(), 0, "b", "b")
		synctest.Wait()
		go count(t.Context(), 2, "c")
		want := map[string]int{"a": 2, "b": 2, "c": 1}
		for range 3 {
			if a := <-answers; a.err != nil || !maps.Equal(a.nodes, want) {
				t.Errorf("answer %+v, want %v", a, want)
			}
		}
		// One is added for which there is no room yet, and another one has lost a rank.
		c.Register(3)
		go count(t.Context(), 2, "b")
		want = map[string]int{"a": 2, "b": 3}
		if a := <-answers; a.err != nil || !maps.Equal(a.nodes, want) {
			t.Errorf("answer %+v, want %v", a, want)
		}
	})
}
