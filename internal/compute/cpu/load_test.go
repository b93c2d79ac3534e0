package cpu

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
)

// TestCount counts three rows of two experts each, and of those the ones that a rank has alone.
func TestCount(t *testing.T) {
	m := &mixing{chosen: []int32{3, 0, 3, 1, 0, 3}}
	m.count(nil, 2, []int32{0})
	all, alone := &compute.ExpertLoad{Rows: make([]int64, 4)},
		&compute.ExpertLoad{Rows: make([]int64, 4), Alone: true}
	for range 2 {
		m.count(all, 2, []int32{0, 2})
		m.count(alone, 2, []int32{0, 2})
	}
	m.count(alone, 2, nil)
	if !slices.Equal(all.Rows, []int64{4, 2, 0, 6}) ||
		!slices.Equal(alone.Rows, []int64{4, 0, 0, 4}) {
		t.Errorf("%v, alone %v", all.Rows, alone.Rows)
	}
}
