package cuda

import (
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
)

func TestBucket(t *testing.T) {
	for rows, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 57: 64, 64: 64,
		257: 264} {
		if got := bucket(rows); got != want {
			t.Errorf("%d rows are computed as %d, not %d", rows, got, want)
		}
	}
}

// decoding is a batch of sequences that go on, the third of which is the shortest.
func decoding() *compute.Batch {
	return &compute.Batch{Tokens: []int32{7, 8, 9}, Slots: []int32{40, 50, 3},
		Position: []int32{20, 30, 3}, Seq: []int32{0, 1, 2}, States: []int32{4, 5, 6},
		Tables: [][]int32{{1, 2}, {0, 3}, {0}}}
}

// TestPad fills a bucket by rows that write nothing, and leaves batches alone of which no graph
// comes.
func TestPad(t *testing.T) {
	d := new(Device)
	want := &compute.Batch{Tokens: []int32{7, 8, 9, 9}, Slots: []int32{40, 50, 3, -1},
		Position: []int32{20, 30, 3, 3}, Seq: []int32{0, 1, 2, 3}, States: []int32{4, 5, 6, -1},
		Tables: [][]int32{{1, 2}, {0, 3}, {0}, {0}}}
	b := decoding()
	for range 2 {
		if got := d.Pad(b); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v instead of %+v", got, want)
		}
	}
	if !reflect.DeepEqual(b, decoding()) {
		t.Errorf("the batch became %+v", b)
	}
	if n := testing.AllocsPerRun(20, func() { d.Pad(b) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	for name, change := range map[string]func(*compute.Batch, *Device){
		"two rows of a sequence": func(b *compute.Batch, _ *Device) {
			b.Seq[1], b.Tables, b.States = 0, b.Tables[:2], b.States[:2]
		},
		"sequences in another order": func(b *compute.Batch, _ *Device) {
			b.Seq[0], b.Seq[1] = 1, 0
		},
		"types":     func(b *compute.Batch, _ *Device) { b.Types = []int32{0, 0, 0} },
		"no cache":  func(b *compute.Batch, _ *Device) { b.Slots = nil },
		"a split":   func(b *compute.Batch, _ *Device) { b.Split.Share = 1 },
		"no graphs": func(_ *compute.Batch, d *Device) { d.graphs.off = true },
		"sums through the host": func(_ *compute.Batch, d *Device) {
			d.comms = append(d.comms, new(Comm))
		},
	} {
		b, d := decoding(), new(Device)
		if change(b, d); d.Pad(b) != b {
			t.Errorf("%s: filled up", name)
		}
	}
}
