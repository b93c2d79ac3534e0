package rlhf

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestOffload stores blocks in files, changes the weights, and has the cache sleep: no block of
// other weights is ever used, and those of the same ones are.
func TestOffload(t *testing.T) {
	dir, weights := t.TempDir(), folder(t, others(t))
	answers := func(s *server) answer {
		question := strings.Repeat("What does strings.Builder do? ", 8)
		return read(t, submit(t, s.engines[0], request(s.engines[0], question, 12)), nil)
	}
	own := answers(open(t, nil))
	other := answers(open(t, func(c *config.Config) { c.Model.Path = weights }))
	open := func() *server {
		s := open(t, func(c *config.Config) {
			c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 0.1, dir
			c.Cache.Blocks, c.Model.MaxModelLen = 64, 512
		})
		_, err := s.Init(t.Context(), true)
		ok(t, err)
		return s
	}
	// ask wants answers, of which as many tokens come from files as hits says: some or none.
	ask := func(what string, s *server, want answer, hits bool) {
		t.Helper()
		before := s.engines[0].Totals().ExternalHits
		if got := answers(s); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if n := s.engines[0].Totals().ExternalHits - before; n > 0 != hits {
			t.Errorf("%s: %d tokens came from files", what, n)
		}
	}
	stored := func(n int) {
		t.Helper()
		for {
			list, err := filepath.Glob(filepath.Join(dir, "*.kv"))
			ok(t, err)
			if len(list) >= n {
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
				t.Fatalf("%d files of %d", len(list), n)
			}
		}
	}
	s := open()
	ask("at first", s, own, false)
	stored(4)
	s.update(t, weights)
	ask("with other weights", s, other, false)
	stored(8)
	done, err := s.ResetPrefixCache(t.Context(), true, false)
	if ok(t, err); !done {
		t.Error("the prefix cache was not emptied")
	}
	ask("with other weights again", s, other, true)
	ok(t, s.Sleep(t.Context(), 1, state.Abort))
	ok(t, s.Wake(t.Context(), nil))
	ask("after a sleep", s, other, true)
	ask("another server", open(), own, true)
	done, err = s.ResetPrefixCache(t.Context(), true, true)
	if ok(t, err); !done {
		t.Error("files were not removed")
	}
	ask("without files", s, other, false)
}
