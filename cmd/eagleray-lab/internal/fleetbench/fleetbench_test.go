package fleetbench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/queuebench"
)

// TestMain makes the test binary a rank when a launcher starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		if err := Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestRun measures small groups of both kinds, and wants every figure of each.
func TestRun(t *testing.T) {
	var asked []string
	o := Options{Ranks: []int{3, 1, 24}, MaxProcesses: 3, Rounds: 2, Steps: 4, Running: 16,
		Progress: func(kind string, n int) { asked = append(asked, fmt.Sprint(n, " ", kind)) }}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	want := "[1 goroutines 3 goroutines 24 goroutines 1 processes 3 processes]"
	if got := fmt.Sprint(asked); got != want {
		t.Errorf("measured %s, not %s", got, want)
	}
	if len(r.Groups) != 5 || len(r.Growth) != 2*len(Figures()) || !(r.LatencyUS > 0) {
		t.Fatalf("%+v", r)
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		for _, name := range Figures() {
			if q := g.Figure(name); !(q.P50 > 0 && q.P50 <= q.P99) {
				t.Errorf("%s of %d %s: %+v", name, g.Ranks, g.Kind, q)
			}
		}
		if g.Broadcast.P50 < r.LatencyUS && g.Kind == Goroutines || g.RPC.P99 < g.Collect.P50 {
			t.Errorf("%+v with a latency of %g µs", g, r.LatencyUS)
		}
	}
}

// TestPlot wants a picture that is XML, with a panel for each kind of ranks and a curve for each
// figure, all within it.
func TestPlot(t *testing.T) {
	r := Report{LatencyUS: 7}
	for _, kind := range []string{Goroutines, Processes} {
		for i := range 4 {
			q := func(us float64) queuebench.Quantiles { return queuebench.Quantiles{P50: us} }
			n := 8 << i
			r.Groups = append(r.Groups, Group{Kind: kind, Ranks: n, Start: q(1e3 * float64(n)),
				Broadcast: q(float64(n)), Step: q(float64(n)), RPC: q(2 * float64(n)),
				Death: q(5e3)})
		}
	}
	circles, words, elements := 0, "", xml.NewDecoder(bytes.NewReader(Plot(&r)))
	for {
		token, err := elements.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			for _, a := range x.Attr {
				v, err := strconv.ParseFloat(a.Value, 64)
				if err == nil && (v < 0 || v > 2*panelHeight) {
					t.Errorf("%s with %s=%s", x.Name.Local, a.Name.Local, a.Value)
				}
			}
			if x.Name.Local == "circle" {
				circles++
			}
		case xml.CharData:
			words += string(x)
		}
	}
	if want := 2 * 4 * len(Figures()); circles != want {
		t.Errorf("%d points, not %d", circles, want)
	}
	for _, word := range append(Figures(), "7 µs away", "processes", "64", "100 ms", "100 µs") {
		if !strings.Contains(words, word) {
			t.Errorf("no %q in %q", word, words)
		}
	}
}

// TestLatency wants bytes to come no sooner than they may, in order, and the end after them.
func TestLatency(t *testing.T) {
	for _, latency := range []time.Duration{time.Nanosecond, 200 * time.Microsecond,
		20 * time.Millisecond} {
		a, b := newConns(latency)
		began := now()
		for i := range byte(100) {
			if _, err := a.Write([]byte{i, i}); err != nil {
				t.Fatal(err)
			}
		}
		a.Close()
		if _, err := a.Write([]byte{1}); err == nil {
			t.Error("a closed end writes")
		}
		got, err := io.ReadAll(io.LimitReader(b, 150))
		if err != nil || now()-began < latency {
			t.Errorf("%v after %v", err, now()-began)
		}
		rest, err := io.ReadAll(b)
		if err != nil {
			t.Error(err)
		}
		got = append(got, rest...)
		for i := range byte(100) {
			if !bytes.Equal(got[2*i:2*i+2], []byte{i, i}) {
				t.Fatalf("read %v", got)
			}
		}
	}
}

// TestDeadline ends a read that waits, with and without bytes on the way.
func TestDeadline(t *testing.T) {
	for _, written := range []int{0, 1} {
		a, b := newConns(time.Minute)
		if _, err := a.Write(make([]byte, written)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 1))
			ended <- err
		}()
		if err := b.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes on the way: %v", written, err)
		}
	}
}

// TestGrowth fits figures that are known.
func TestGrowth(t *testing.T) {
	var groups []Group
	for _, n := range []int{8, 16, 32, 64} {
		g := Group{Kind: Goroutines, Ranks: n}
		g.Start.P50 = 100 + 3*float64(n)
		g.Collect.P50 = float64(n * n)
		g.Broadcast.P50, g.RPC.P50, g.Step.P50, g.Death.P50 = 7, 7, 7, 7
		groups = append(groups, g)
	}
	close := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	for _, g := range growth(groups) {
		switch g.Figure {
		case "start":
			if !close(g.BaseUS, 100) || !close(g.PerRankUS, 3) || g.Power >= 1 {
				t.Errorf("%+v", g)
			}
		case "collect":
			if !close(g.Power, 2) {
				t.Errorf("%+v", g)
			}
		default:
			if !close(g.BaseUS, 7) || !close(g.PerRankUS, 0) || !close(g.Power, 0) {
				t.Errorf("%+v", g)
			}
		}
	}
}
