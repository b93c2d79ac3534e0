package engine

import (
	"errors"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// errAdopted is why a group ends whose engine's files are not those that count any more.
var errAdopted = errors.New("another engine has adopted other files of the model")

// adopt takes note of the files that the newest group has loaded. If they are others than before,
// answers of which a part is known cannot go on: they would be two models'.
func (l *Loop) adopt() {
	if l.e.ranks.Revision == l.revision {
		return
	}
	l.revision = l.e.ranks.Revision
	waiting := map[*stream]int{}
	for _, q := range l.requests {
		if !q.Begun() {
			waiting[q.stream]++
		}
	}
	b := l.e.delivery.empty()
	b.how, b.err = sample.FinishError, ErrReplaced
	for key, q := range l.requests {
		if waiting[q.stream] == len(q.stream.choices) {
			continue
		}
		b.ended = append(b.ended, q)
		l.remove(key)
	}
	l.e.exchange.Cancelled()
	l.e.delivery.batches <- b
}
