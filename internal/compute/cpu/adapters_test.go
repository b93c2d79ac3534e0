package cpu

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestAdaptedOrder: where A·x of a row lies among that of others does not depend on the places that
// a rank has given adapters: ranks add it, and one that was started later has given others.
func TestAdaptedOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var one, other adapted
	for range 2000 {
		adapters := 1 + r.IntN(5)
		places, renamed := r.Perm(adapters), make([]int32, 1+r.IntN(20))
		rows := make([]int32, len(renamed))
		for i := range rows {
			rows[i] = int32(r.IntN(adapters+1)) - 1
			if i > 0 && r.IntN(3) == 0 {
				rows[i] = rows[i-1]
			}
			renamed[i] = rows[i]
			if rows[i] >= 0 {
				renamed[i] = int32(places[rows[i]])
			}
		}
		one.begin(rows)
		other.begin(renamed)
		if !slices.EqualFunc(one.rows, other.rows, func(x, y adaptedRows) bool {
			x.place = places[x.place]
			return x == y
		}) {
			t.Fatalf("%v: %v, in other places %v", rows, one.rows, other.rows)
		}
	}
}
