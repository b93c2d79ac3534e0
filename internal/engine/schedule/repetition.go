package schedule

// Repetition ends an output that repeats itself: vLLM's RepetitionDetectionParams. The zero value
// never does.
type Repetition struct {
	// MinPattern and MaxPattern are the lengths in tokens of the patterns looked for. MaxPattern 0
	// is off, MinPattern 0 is 1.
	MinPattern, MaxPattern int
	// MinCount is how often the end of the output must hold a pattern, one right after the other;
	// it is at least 2 unless MaxPattern is 0.
	MinCount int
}

// repeats is how far the end of an output repeats itself. It is a function of the tokens alone.
type repeats struct {
	// seen is how many tokens of output it covers.
	seen int
	// runs[p-1] is how many of the last tokens are the same as the one p before.
	runs []int32
}

// find takes in the tokens that are new in output, each in a time proportional to the longest
// pattern, and reports whether output ends with a pattern often enough. No pattern is looked for
// that could not be there within maxTokens.
func (r *repeats) find(output []int32, want Repetition, maxTokens int) bool {
	longest := want.MaxPattern
	if want.MinCount > 0 {
		longest = min(longest, maxTokens/want.MinCount)
	}
	if longest < 1 || want.MinCount < 2 {
		return false
	}
	if r.runs == nil {
		r.runs = make([]int32, longest)
	}
	for ; r.seen < len(output); r.seen++ {
		for p := 1; p <= min(longest, r.seen); p++ {
			if output[r.seen] == output[r.seen-p] {
				r.runs[p-1]++
			} else {
				r.runs[p-1] = 0
			}
		}
	}
	for p := max(1, want.MinPattern); p <= longest; p++ {
		if int(r.runs[p-1]) >= p*(want.MinCount-1) {
			return true
		}
	}
	return false
}
