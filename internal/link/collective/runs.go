package collective

import "fmt"

// MaxExchange is the most elements that a rank sends, and receives, in an all-to-all.
const MaxExchange = 1 << 30

// CheckRuns returns an error unless counts are the lengths of one run for each rank that together
// have n elements, and no more than MaxExchange.
func CheckRuns(counts []int, ranks, n int) error {
	if len(counts) != ranks {
		return fmt.Errorf("lengths of %d runs for %d ranks", len(counts), ranks)
	}
	sum := 0
	for rank, count := range counts {
		if count < 0 || count > MaxExchange-sum {
			return fmt.Errorf("run of %d elements for rank %d, after %d: at most %d together",
				count, rank, sum, MaxExchange)
		}
		sum += count
	}
	if sum != n {
		return fmt.Errorf("runs of %d elements together in %d", sum, n)
	}
	return nil
}

// BadRun is the error of a rank that says something impossible of its run for this one: that it is
// elements from and to of so many.
func BadRun(from, to, total, rank int) error {
	return fmt.Errorf("%w: run of elements %d to %d of %d on rank %d", ErrMismatch, from, to, total,
		rank)
}

// Arrivals are the lengths of the runs that come to this rank in an all-to-all, as it learns them.
type Arrivals struct {
	// Got has a length for each rank. Those are known beforehand if Known is set, and compared;
	// else they are set.
	Got   []int
	Known bool
}

// Check returns an error unless counts are the lengths of the runs that a rank sends, which have x
// elements together, and those that it knows have dst.
func (a Arrivals) Check(dst int, counts []int, ranks, x int) error {
	if a.Known {
		if err := CheckRuns(a.Got, ranks, dst); err != nil {
			return err
		}
	}
	if err := CheckRuns(counts, ranks, x); err != nil {
		return err
	}
	if len(a.Got) != ranks {
		return CheckRuns(a.Got, ranks, 0)
	}
	return nil
}

// Op is the operation in which a rank learns the lengths, or compares them: all ranks do the same.
func (a Arrivals) Op() Op {
	if a.Known {
		return AllToAll
	}
	return AllToAllV
}

// Add notes that the run of a rank has n elements.
func (a Arrivals) Add(rank, n int, names Names) error {
	if !a.Known {
		a.Got[rank] = n
	} else if a.Got[rank] != n {
		return fmt.Errorf("%w: run of %d elements here, of %d on rank %d", ErrMismatch,
			a.Got[rank], n, names.Of(rank))
	}
	return nil
}

// Resize returns memory for all the runs: that of dst, if they fit, else new memory, with room for
// half as much again. The elements are any.
func (a Arrivals) Resize(dst []float32) ([]float32, error) {
	sum := 0
	for _, n := range a.Got {
		sum += n
	}
	if sum > MaxExchange {
		return nil, fmt.Errorf("runs of %d elements come together: at most %d", sum, MaxExchange)
	}
	if cap(dst) < sum {
		dst = make([]float32, sum, sum+sum/2)
	}
	return dst[:sum], nil
}
