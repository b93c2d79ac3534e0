package runner

// Use says how large a runner becomes.
type Use struct {
	// Vocab is the width of a row of logits, Rows the most rows of a step.
	Vocab, Rows int
	// MaxSeqs bounds the slots, MaxModelLen the tokens of one request.
	MaxSeqs, MaxModelLen int
	// Shares is how many ranks share the logits, Last that the rank's stage has them, Output that
	// this one has all of them, and samples.
	Shares       int
	Last, Output bool
}

// Footprint is the memory that a runner takes: in all, and beside for each thread, in bytes.
func Footprint(u Use) (bytes, perThread int64) {
	// Slots keep what their longest request took: its tokens and its blocks, of 16 positions or
	// more.
	bytes = int64(u.MaxSeqs) * (int64(u.MaxModelLen)*(4+1) + int64(u.MaxModelLen)/16*4 + 1024)
	bytes += int64(u.Rows) * 128 // the batch, and wanted rows
	piece := int64(min(u.Rows, max(1, logitElements/u.Vocab))) * int64(u.Vocab) * 4
	if u.Last && u.Shares > 1 {
		bytes += piece / int64(u.Shares)
	}
	if !u.Output {
		return bytes, 0
	}
	if u.Shares > 1 {
		bytes += piece // gathered
	}
	// Logits; and of each thread those before sampling, candidates, their numbers and keys, a mask.
	return bytes + piece, int64(u.Vocab) * 24
}
