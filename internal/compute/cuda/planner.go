package cuda

import "github.com/eagleray/eagleray/internal/compute"

// Planner says what a device that runs models in a type takes, before there is one.
type Planner struct{ DType compute.DType }

// PackedBytes is the memory that Pack takes; of the sources only shapes are looked at.
func (p Planner) PackedBytes(chunks int, sources ...compute.Source) (int64, error) {
	out, in, err := stacked(sources)
	return int64(p.DType.Size()*out) * int64(chunks) * int64(paddedWidth(in, chunks)), err
}

// RotaryBytes is what the angles take of positions below a bound, dim of each: at most as much
// again is kept while there come more.
func (p Planner) RotaryBytes(dim, positions int) int64 {
	pages := (int64(positions) + rotaryPage - 1) / rotaryPage
	return 2 * pages * rotaryPage * 4 * int64(dim)
}

// MixtureWidth is how many float32 Mix computes in for each row, beside what it is given.
func (p Planner) MixtureWidth(hidden, inner, chunks, experts, perToken int) int {
	return perToken*(3*inner+inner/2+chunks*hidden+hidden/2) + 4*perToken
}

// VisitWidth is how many float32 a mixture takes of which the rows of so many places visit the
// experts, for each of at most so many rows of a place: mixture is MixtureWidth, for those that Mix
// computes together; besides all rows, their scores and sums, and what comes back of other ranks.
func (p Planner) VisitWidth(mixture, hidden, experts, perToken, places, rows int) int {
	together := min(places, max(1, (mixedAtOnce+rows-1)/max(rows, 1)))
	return together*mixture + places*(hidden+hidden/2+2*hidden+2*hidden+experts+2*perToken)
}

// AmongBytes is what AttentionAmong takes for each row: each sequence begins a block.
func (p Planner) AmongBytes(kvHeads, headDim int) int {
	layer := compute.CacheLayer{Heads: kvHeads, Dim: headDim}
	return 2 * layer.Bytes(1, p.DType)
}

// ScratchPerThread is what each thread of the host computes in: samplers' work.
func (p Planner) ScratchPerThread() int64 { return 256 << 10 }
