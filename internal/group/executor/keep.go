package executor

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/step"
)

// CanKeep says whether ranks may go on in another group after a failure.
func CanKeep(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Extent != verdict.AllRanks
}

// Lost are the ranks that a failure that CanKeep has taken.
func Lost(err error) []int {
	var f *Failure
	if errors.As(err, &f) && f.Extent == verdict.OneRank {
		return []int{f.Rank}
	}
	return nil
}

// Kept is how many ranks have been in a group before.
func (e *Executor) Kept() int {
	n := 0
	for _, r := range e.loading.ranks {
		if r.Past != nil {
			n++
		}
	}
	return n
}

// Remembers says whether every rank has the keys and values of every plan up to the given one.
func (e *Executor) Remembers(plan uint64) bool {
	for _, r := range e.loading.ranks {
		if r.Past == nil || r.Past.Done < plan {
			return false
		}
	}
	return true
}

// errUnsound is that ranks of a group before do not agree on the plans that they have executed.
var errUnsound = errors.New("ranks that were kept do not agree on what they have computed")

// sound wants a rank that was kept to have gone the same way as the others that were: of the plans
// that two of them know, the last one must have been the same to both.
func (l *loading) sound(rank int) error {
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
			return fmt.Errorf("%w: ranks %d and %d have no plan in common", errUnsound, other, rank)
		case a.Hash != b.Hash:
			return fmt.Errorf("%w: plan %d is another one to rank %d than to rank %d", errUnsound,
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
