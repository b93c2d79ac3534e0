package engine_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// ranksOf are the processes of this one's ranks, also of those that are being started.
func ranksOf(t *testing.T) map[int]int {
	t.Helper()
	found := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, _ := os.ReadFile(path)
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		_, rest, ok := strings.Cut(string(line), "--rank\x00")
		number, _, _ := strings.Cut(rest, "\x00")
		if rank, err := strconv.Atoi(number); ok && err == nil {
			if found[rank], err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return found
}

// TestFaultsInRecovery takes something more from a group that is being replaced: another rank
// before the next group is started, the new rank while it loads, one that was kept while the new
// one loads.
func TestFaultsInRecovery(t *testing.T) {
	restarting := func(e status.Event) bool {
		r, ok := e.(status.GroupRestarting)
		return ok && r.Restart == 1
	}
	loading := func(e status.Event) bool {
		p, ok := e.(status.Progress)
		return ok && p.Phase == "load" && p.Rank == 0
	}
	for _, c := range []struct {
		name   string
		when   func(status.Event) bool
		victim int
	}{{"another rank at once", restarting, 1}, {"the new rank while it loads", loading, 0},
		{"a kept rank while the new one loads", loading, 1}} {
		t.Run(c.name, func(t *testing.T) {
			var armed, second sync.Once
			ready, faulted := make(chan struct{}), make(chan struct{})
			e, _ := openWith(t, func(o *config.Config) {
				o.Parallel.Backend, o.Parallel.TensorParallelSize, o.Parallel.CPUThreads = "mp", 2,
					1
			}, func(event status.Event) {
				select {
				case <-ready:
				default:
					return
				}
				if c.when(event) {
					second.Do(func() {
						sigkill(t, ranksOf(t)[c.victim])
						close(faulted)
					})
				}
			})
			list := sampled(e, 4)
			want := receiveAll(t, e, list, func(int) {})
			got := receiveAll(t, e, list, func(tokens int) {
				if tokens > 10 {
					armed.Do(func() {
						close(ready)
						sigkill(t, e.Report()[0].PID)
					})
				}
			})
			same(t, c.name, got, want)
			select { // the requests may have been over before
			case <-faulted:
			case <-time.After(time.Minute):
				t.Error("there was no second fault")
			}
			for until := time.Now().Add(time.Minute); e.Healthy(
				t.Context()) != nil; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal(e.Healthy(t.Context()))
				}
			}
		})
	}
}

func sigkill(t *testing.T, pid int) {
	if err := syscall.Kill(pid, syscall.SIGKILL); pid == 0 || err != nil {
		t.Errorf("kill %d: %v", pid, err)
	}
}

// TestTenFaults kills ten ranks, one after the other, under the same requests.
func TestTenFaults(t *testing.T) {
	e := openEngine(t, func(o *config.Config) {
		o.Parallel.Backend, o.Parallel.TensorParallelSize, o.Parallel.CPUThreads = "mp", 2, 1
	})
	most := 10
	if testing.Short() {
		most = 5
	}
	var list []*engine.Request
	for i := range 4 {
		r := greedy(e, fmt.Sprintf("What does strings.%c do?", 'A'+i), int32(16*most))
		r.Params.Temperature, r.Params.Seed, r.Params.MinTokens = 0.9, uint64(i), int32(15*most)
		list = append(list, r)
	}
	want := receiveAll(t, e, list, func(int) {})
	rng := rand.New(rand.NewPCG(13, 10))
	var mu sync.Mutex
	faults := 0
	got := receiveAll(t, e, list, func(tokens int) {
		mu.Lock()
		defer mu.Unlock()
		if faults < most && tokens > 12*(faults+1) {
			faults++
			sigkill(t, e.Report()[rng.IntN(2)].PID)
		}
	})
	same(t, fmt.Sprint(most, " faults"), got, want)
	if faults != most {
		t.Errorf("%d faults", faults)
	}
}
