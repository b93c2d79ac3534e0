package weights

import (
	"bytes"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// The memory of an update that is closed is that of the next one, whatever type it has; what is
// there from before is no part of it.
func TestSpare(t *testing.T) {
	specs := []checkpoint.Spec{{Name: "a", Shape: []int{3, 5}}, {Name: "b", Shape: []int{4000}},
		{Name: "c", Shape: []int{0}}}
	var spare Spare
	if err := spare.Reserve(specs, checkpoint.BF16); err != nil {
		t.Fatal(err)
	}
	if len(spare.free) != 1 {
		t.Fatal("nothing is reserved")
	}
	file := spare.free[0].file
	for round, d := range []checkpoint.DType{checkpoint.BF16, checkpoint.F32, checkpoint.F16} {
		b, err := NewBuilder(specs, &spare)
		if err != nil {
			t.Fatal(err)
		}
		if b.own.file != file {
			t.Errorf("round %d: the memory is new", round)
		}
		want := map[string][]byte{}
		for _, s := range specs {
			p := Piece{Name: s.Name, DType: d, Shape: s.Shape}
			raw := bytes.Repeat([]byte{byte(round + 1)}, int(elements(s.Shape))*d.Size())
			if _, err := b.Receive(bytes.NewReader(raw), &p); err != nil {
				t.Fatal(err)
			}
			if round == 1 && s.Name == "b" {
				b.Close() // given up
				break
			}
			b.Done(&p)
			want[s.Name] = raw
		}
		if round == 1 {
			continue
		}
		u, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		b.Close() // has nothing any more
		staged := Open(*u)
		c, err := staged.Checkpoint()
		if err != nil || !staged.drivers {
			t.Fatal(err, staged.drivers)
		}
		for _, s := range specs {
			x, err := c.Tensor(s.Name)
			if err != nil || x.DType != d || !bytes.Equal(x.Data, want[s.Name]) {
				t.Errorf("round %d: %s is %v %v: %v", round, s.Name, x.DType, x.Data[:min(8,
					len(x.Data))], err)
			}
		}
		c.Close()
		// Another update keeps its own memory while this one's is in use.
		other, err := NewBuilder(specs, &spare)
		if err != nil {
			t.Fatal(err)
		}
		if other.own.file == file {
			t.Fatalf("round %d: two updates have one memory", round)
		}
		u.Close()
		other.Close() // one is enough
	}
	spare.Drop()
	if spare.free != nil {
		t.Error("something is left")
	}
}
