package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// held is what a process must give back.
type held struct{ goroutines, descriptors, mappings, children, shared int }

func countHeld(t *testing.T) held {
	t.Helper()
	runtime.GC()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	shm, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	return held{runtime.NumGoroutine(), len(fds), bytes.Count(maps, []byte("\n")), len(children(t)),
		len(shm)}
}

// children lists this process' children, zombies included.
func children(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range files {
		// A thread may have ended since the folder was listed.
		raw, _ := os.ReadFile(f)
		all = append(all, strings.Fields(string(raw))...)
	}
	return all
}

// TestNothingLeaks opens, uses and stops engines and counts what is left.
func TestNothingLeaks(t *testing.T) {
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprintf("tp=%d", size), func(t *testing.T) {
			cycle := func() {
				c := config.Default()
				c.Cache.MemoryBytes, c.Parallel.TensorParallelSize = 64<<20, size
				e, _, err := engine.Open(t.Context(), engine.Options{Config: c})
				if err != nil {
					t.Fatal(err)
				}
				s, err := e.Submit(t.Context(), greedy(e, question, 2000))
				if err != nil {
					t.Fatal(err)
				}
				mustAsk(t, e, greedy(e, question, 20))
				s.Close()
				if err := e.Stop(context.Background()); err != nil {
					t.Fatal(err)
				}
				if err := e.Stop(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 { // caches of the runtime and of libraries fill
				cycle()
			}
			before := countHeld(t)
			cycles := 8
			if testing.Short() {
				cycles = 4
			}
			for range cycles {
				cycle()
			}
			var after held
			for range 100 {
				after = countHeld(t)
				if after.goroutines <= before.goroutines &&
					after.descriptors <= before.descriptors && after.children == 0 &&
					after.shared <= before.shared {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			// The Go runtime maps memory of its own as it likes: only growth with every cycle is a
			// leak.
			if after.goroutines > before.goroutines || after.descriptors > before.descriptors ||
				after.children > 0 || after.shared > before.shared ||
				after.mappings >= before.mappings+cycles {
				t.Errorf("before %+v, after %+v", before, after)
			}
		})
	}
}
