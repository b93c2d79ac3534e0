package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/rank/calls"
)

// TestLoadHistory asks for the load of one layer's two experts at times, in seconds.
func TestLoadHistory(t *testing.T) {
	var h loadHistory
	began := time.Now()
	for _, c := range []struct {
		at     int
		rows   []int64
		recent []int64
		why    string
	}{
		{0, []int64{10, 0}, []int64{10, 0}, "all since the start"},
		{59, []int64{20, 0}, []int64{20, 0}, "the first is not a minute old"},
		{61, []int64{20, 5}, []int64{20, 5}, "it is from now on"},
		{62, []int64{20, 6}, []int64{10, 6}, "since 0 s"},
		{125, []int64{20, 8}, []int64{10, 8}, "since 0 s for the last time"},
		{126, []int64{20, 9}, []int64{0, 4}, "since 61 s"},
		{900, []int64{20, 9}, []int64{0, 4}, "since 61 s for the last time"},
		{901, []int64{20, 9}, []int64{0, 1}, "since 125 s"},
		{999, []int64{20, 9}, []int64{0, 1}, "idle: the last steps"},
		{1000, []int64{21, 9}, []int64{1, 1}, "since 125 s for the last time"},
		{1001, []int64{22, 9}, []int64{2, 0}, "since 900 s"},
		{1002, []int64{40, 1}, []int64{40, 1}, "a rank has begun anew"},
	} {
		l := []ExpertLoad{{Layer: 4, Rows: c.rows}}
		h.add(l, began.Add(time.Duration(c.at)*time.Second))
		if !slices.Equal(l[0].Recent, c.recent) {
			t.Errorf("at %d s: recent rows are %v, not %v: %s", c.at, l[0].Recent, c.recent, c.why)
		}
	}
	other := []ExpertLoad{{Layer: 4, Rows: []int64{50, 2}}, {Layer: 5, Rows: []int64{3, 4}}}
	h.add(other, began.Add(1003*time.Second))
	if !slices.Equal(other[0].Recent, []int64{50, 2}) ||
		!slices.Equal(other[1].Recent, []int64{3, 4}) {
		t.Errorf("of another stage: %v", other)
	}
}

// TestSumLoads adds up two ranks that divide rows in one stage, and one of another stage.
func TestSumLoads(t *testing.T) {
	sum, err := sumLoads([][]calls.LayerLoad{nil, {{Layer: 2, Rows: []int64{5, 6}}},
		{{Layer: 0, Rows: []int64{1, 2}}, {Layer: 1, Rows: []int64{3, 4}}},
		{{Layer: 0, Rows: []int64{10, 20}}}}, 2)
	if err != nil || len(sum) != 3 {
		t.Fatal(sum, err)
	}
	for layer, want := range [][]int64{{11, 22}, {3, 4}, {5, 6}} {
		if sum[layer].Layer != layer || !slices.Equal(sum[layer].Rows, want) {
			t.Errorf("layer %d: %+v, not %v", layer, sum[layer], want)
		}
	}
	_, err = sumLoads([][]calls.LayerLoad{nil, {{Layer: 7, Rows: []int64{1}}}}, 2)
	if err == nil || err.Error() != "rank 1 counts rows of 1 experts in layer 7, not of 2" {
		t.Error(err)
	}
}

// TestHottest wants no share of nothing.
func TestHottest(t *testing.T) {
	l := ExpertLoad{Recent: []int64{0, 0, 0}}
	if e, share := l.Hottest(); e != 0 || share != 0 || l.Balancedness() != 1 {
		t.Errorf("expert %d has %v, balancedness %v", e, share, l.Balancedness())
	}
	l.Recent = []int64{1, 6, 5}
	if e, share := l.Hottest(); e != 1 || share != 0.5 || l.Balancedness() != 4./6 {
		t.Errorf("expert %d has %v, balancedness %v", e, share, l.Balancedness())
	}
}
