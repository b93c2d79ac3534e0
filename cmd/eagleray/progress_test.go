package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// TestProgress: one line tells of all ranks, and of all files that come at a time.
func TestProgress(t *testing.T) {
	const gb = 1e9
	now := time.Now()
	type report struct {
		after time.Duration
		at    place
		status.Progress
	}
	load := func(after time.Duration, rank int, done, total int64) report {
		return report{after, place{0, rank}, status.Progress{Rank: rank, Phase: "load",
			Done: done, Total: total}}
	}
	for _, tt := range []struct {
		name     string
		terminal bool
		reports  []report
		want     string
	}{
		{"no bytes", true, []report{{at: place{0, -1}, Progress: status.Progress{Rank: -1,
			Phase: "ray connect"}}}, "ray connect"},
		{"a file", true, []report{
			{0, place{0, -1}, status.Progress{Rank: -1, Phase: "download a", Total: 10 * gb}},
			{2 * time.Second, place{0, -1}, status.Progress{Rank: -1, Phase: "download b",
				Done: 5 * gb, Total: 10 * gb}},
		}, "download b [##########----------]  50% of 10.00 GB, 2.50 GB/s, 2 s left"},
		{"two ranks", false, []report{load(0, 0, 0, 2*gb), load(0, 1, 0, 2*gb),
			load(time.Second, 0, 1*gb, 2*gb)},
			"load, 2 ranks  25% of 4.00 GB, 1.00 GB/s, 3 s left"},
		{"one of them is further", false, []report{load(0, 0, 0, 2*gb), load(0, 1, 0, 2*gb),
			{0, place{0, 0}, status.Progress{Rank: 0, Phase: "warm up"}},
			load(10*time.Second, 1, gb/100, 2*gb)},
			"load, 2 ranks  50% of 4.00 GB, 0.20 GB/s, 10 s left"},
		{"two engines", false, []report{load(0, 0, 0, 600*gb),
			{0, place{1, 0}, status.Progress{Rank: 0, Phase: "load", Total: 600 * gb}},
			load(time.Second, 0, 1*gb, 600*gb)},
			"load, 2 ranks   0% of 1200.00 GB, 1.00 GB/s, 20 min left"},
		{"resumed", true, []report{
			{0, place{0, -1}, status.Progress{Rank: -1, Phase: "download a", Done: 8 * gb,
				Total: 10 * gb}},
			{time.Second, place{0, -1}, status.Progress{Rank: -1, Phase: "download a",
				Done: 9 * gb, Total: 10 * gb}},
		}, "download a [##################--]  90% of 10.00 GB, 1.00 GB/s, 1 s left"},
		{"unknown length", true, []report{load(0, 0, 0, 0), load(time.Second, 0, gb, 0)},
			"load 1.00 GB, 1.00 GB/s"},
	} {
		p := progressTo(&bytes.Buffer{}, tt.terminal)
		got := ""
		for _, r := range tt.reports {
			p.note(r.at, r.Progress, now.Add(r.after))
			got = p.describe(r.Phase, now.Add(r.after))
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestProgressOfAnotherStart counts the time of a load from its own start, not from that of the
// group that is there or was there before, and tells nothing of a short one.
func TestProgressOfAnotherStart(t *testing.T) {
	for _, between := range []status.Event{status.GroupReady{}, status.GroupRestarting{}} {
		var out bytes.Buffer
		p := progressTo(&out, false)
		load := func(done int64) {
			p.listen(status.Progress{Phase: "load", Done: done, Total: 2e9})
		}
		load(0)
		hour := time.Now().Add(-time.Hour)
		p.started, p.work["load"].began = hour, hour
		p.listen(between)
		load(0)
		if out.Len() > 0 {
			t.Errorf("%T: %q is told at once", between, &out)
		}
		later := time.Now().Add(time.Second)
		p.note(place{}, status.Progress{Phase: "load", Done: 1e9, Total: 2e9}, later)
		if got := p.describe("load", later); !strings.HasSuffix(got, ", 1 s left") {
			t.Errorf("%T: %q", between, got)
		}
	}
}
