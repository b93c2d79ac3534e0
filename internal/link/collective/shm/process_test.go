package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestMain makes the test binary another rank: the words are "role rank ranks maxBytes".
func TestMain(m *testing.M) { testchild.Main(m, child) }

func child(spec string) error {
	var role string
	var rank, ranks, maxBytes int
	if _, err := fmt.Sscan(spec, &role, &rank, &ranks, &maxBytes); err != nil {
		return err
	}
	f := os.NewFile(3, "segment")
	g, err := Options{Timeout: time.Minute}.Join(f, rank, ranks, maxBytes)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if c, ok := contests[role]; ok {
		_, err := beside(g, c.slice, c.turns(g), nil)
		return errors.Join(err, g.Close())
	}
	if phase, ok := strings.CutPrefix(role, "die:"); ok {
		return die(g, strings.ReplaceAll(phase, "_", " "))
	}
	switch role {
	case "exchange":
		return collectivetest.ExchangeUntil(g, longRuns)
	case "script":
		return errors.Join(collectivetest.Script(g, 21, 150, 200_000), g.Close())
	case "reduce":
		return collectivetest.SumUntil(g, 4)
	case "echo":
		return errors.Join(echo(g), g.Close())
	}
	return fmt.Errorf("role %q", role)
}

func start(t testing.TB, f *os.File, role string, rank, ranks,
	maxBytes int) *testchild.Process {
	t.Helper()
	return testchild.Start(t, fmt.Sprint(role, " ", rank, " ", ranks, " ", maxBytes), f)
}

func TestProcesses(t *testing.T) {
	for _, ranks := range []int{2, 4, 8} {
		t.Run(strconv.Itoa(ranks), func(t *testing.T) {
			const maxBytes = 64 << 10
			f, err := Create(ranks, maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var others []*testchild.Process
			for r := 1; r < ranks; r++ {
				others = append(others, start(t, f, "script", r, ranks, maxBytes))
			}
			g, err := Join(f, 0, ranks, maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := collectivetest.Script(g, 21, 150, 200_000); err != nil {
				t.Error(err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			for r, p := range others {
				if err := p.Wait(); err != nil {
					t.Errorf("rank %d: %v: %s", r+1, err, p.Stderr.String())
				}
			}
		})
	}
}

// TestKilledPeer kills a rank in the middle of its work; the rank that notices aborts, and all
// others end quickly.
func TestKilledPeer(t *testing.T) {
	const ranks, maxBytes = 4, 4096
	f, err := Create(ranks, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := Options{Timeout: time.Minute}.Join(f, 0, ranks, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	victim := start(t, f, "reduce", 1, ranks, maxBytes)
	survivors := []*testchild.Process{start(t, f, "reduce", 2, ranks, maxBytes),
		start(t, f, "reduce", 3, ranks, maxBytes)}
	x := make([]float32, 4)
	for range 100 {
		if err := g.AllReduce(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	victim.Wait()
	died := time.Now()
	go g.Abort(errors.New("rank 1 was killed"))
	for err = g.AllReduce(x); err == nil; err = g.AllReduce(x) {
	}
	if !errors.Is(err, collective.ErrAborted) {
		t.Errorf("rank 0: %v", err)
	}
	for i, p := range survivors {
		p.Wait()
		if p.ProcessState.ExitCode() != 1 || !strings.Contains(p.Stderr.String(),
			"aborted by rank 0: rank 1 was killed") {
			t.Errorf("rank %d: exit code %d, %s", i+2, p.ProcessState.ExitCode(), p.Stderr.String())
		}
	}
	if took := time.Since(died); took > 10*time.Second {
		t.Errorf("the others ended after %v", took)
	}
}

// TestNoLeaks checks that neither descriptors nor mappings remain, also after failed joins.
func TestNoLeaks(t *testing.T) {
	count := func() (fds, maps int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		return len(entries), strings.Count(string(text), "eagleray-collective")
	}
	round := func() {
		f, err := Create(2, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var gs []*Group
		for r := range 2 {
			g, err := Join(f, r, 2, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			gs = append(gs, g)
		}
		if _, err := Join(f, 1, 2, 1<<20); err == nil {
			t.Error("joined twice")
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		collectivetest.Must(t, collectivetest.Each(gs,
			func(g *Group) error { return errors.Join(g.Barrier(), g.Close()) }))
	}
	round()
	fds, maps := count()
	for range 20 {
		round()
	}
	if f, m := count(); f > fds || m != 0 || maps != 0 {
		t.Errorf("%d descriptors and %d mappings after, %d and %d before", f, m, fds, maps)
	}
}

var benchmarkSizes = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

const benchmarkRounds = 400

// echo is the other side of BenchmarkAllReduce.
func echo(g *Group) error {
	_, err := measure(g)
	return err
}

// measure times all-reduces of every size, the ranks aligned by a barrier before each.
func measure(g *Group) (map[int][]time.Duration, error) {
	times := map[int][]time.Duration{}
	for _, size := range benchmarkSizes {
		x := make([]float32, size/4)
		for range benchmarkRounds {
			if err := g.Barrier(); err != nil {
				return nil, err
			}
			at := time.Now()
			if err := g.AllReduce(x); err != nil {
				return nil, err
			}
			times[size] = append(times[size], time.Since(at))
		}
	}
	return times, nil
}

// BenchmarkAllReduce reports medians between processes.
func BenchmarkAllReduce(b *testing.B) {
	for _, ranks := range []int{2, 4} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			const maxBytes = 4 << 20
			for range b.N {
				f, err := Create(ranks, maxBytes)
				if err != nil {
					b.Fatal(err)
				}
				var others []*testchild.Process
				for r := 1; r < ranks; r++ {
					others = append(others, start(b, f, "echo", r, ranks, maxBytes))
				}
				g, err := Join(f, 0, ranks, maxBytes)
				if err != nil {
					b.Fatal(err)
				}
				times, err := measure(g)
				if err != nil {
					b.Fatal(err)
				}
				for _, size := range benchmarkSizes {
					d := times[size]
					slices.Sort(d)
					b.ReportMetric(float64(d[len(d)/2].Nanoseconds())/1e3,
						fmt.Sprintf("p50-µs/%dKiB", size>>10))
				}
				for _, p := range others {
					if err := p.Wait(); err != nil {
						b.Fatalf("%v: %s", err, p.Stderr.String())
					}
				}
				g.Close()
				f.Close()
			}
		})
	}
}
