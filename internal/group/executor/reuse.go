package executor

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/step"
)

// CanReuse reports whether ranks may be reused in another group after a failure.
func CanReuse(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Extent != verdict.AllRanks
}

// LostRanks returns the ranks that a failure with CanReuse has ended.
func LostRanks(err error) []int {
	var f *Failure
	if errors.As(err, &f) && f.Extent == verdict.OneRank {
		return []int{f.Rank}
	}
	return nil
}

// Reused returns the number of ranks that were in an earlier group.
func (e *Executor) Reused() int {
	n := 0
	for _, r := range e.loading.ranks {
		if r.Past != nil {
			n++
		}
	}
	return n
}

// HasComputed reports whether every rank has the keys and values of every plan up to the given one.
func (e *Executor) HasComputed(plan uint64) bool {
	for _, r := range e.loading.ranks {
		if r.Past == nil || r.Past.Done < plan {
			return false
		}
	}
	return true
}

// errDisagree says that reused ranks have executed different plans.
var errDisagree = errors.New("ranks that were kept do not agree on what they have computed")

// checkTrail checks that a reused rank has executed the same plans as the other reused ranks: the
// last plan in both of their trails must have the same hash.
func (l *loading) checkTrail(rank int) error {
	past := l.ranks[rank].Past
	if past == nil || len(past.Trail) == 0 {
		return nil
	}
	for other := range l.ranks {
		o := l.ranks[other].Past
		if other == rank || o == nil || len(o.Trail) == 0 {
			continue
		}
		a, b, ok := common(past.Trail, o.Trail)
		switch {
		case !ok:
			return fmt.Errorf("%w: ranks %d and %d have no plan in common", errDisagree, other,
				rank)
		case a.Hash != b.Hash:
			return fmt.Errorf("%w: plan %d is another one to rank %d than to rank %d", errDisagree,
				a.Plan, other, rank)
		}
	}
	return nil
}

// common finds the last plan of both trails.
func common(a, b []step.Digest) (x, y step.Digest, ok bool) {
	for i, j := len(a)-1, len(b)-1; i >= 0 && j >= 0; {
		switch x, y = a[i], b[j]; {
		case x.Plan == y.Plan:
			return x, y, true
		case x.Plan > y.Plan:
			i--
		default:
			j--
		}
	}
	return x, y, false
}
