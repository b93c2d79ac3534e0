package layers

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Inspect returns a loader of layers that cannot run: it looks for what is wrong with tensors that
// is seen without reading them. These are their names, types and shapes, vectors, and the scales
// and zero points of quantised matrices. Scales that lie among the codes, as in blocks of GGUF, are
// looked at if blocks says so: all of the file is read for that.
func Inspect(src Source, blocks bool) *Loader {
	l := Weigh(Group{Size: 1}, src, NoDevice{}, 0, 0)
	l.scale.values, l.scale.blocks = true, blocks
	return l
}

// Ordered says that a matrix that was inspected has its input features in an order of groups, which
// ranks cannot divide.
func (l *Loader) Ordered() bool { return l.scale.ordered }

// inspect looks at the numbers of opened blocks if that was asked for.
func (s *scale) inspect(list []block) error {
	if !s.values {
		return nil
	}
	for i := range list {
		b := &list[i]
		if b.matrix == nil {
			continue
		}
		s.ordered = s.ordered || b.codes.Order != nil
		if _, within := b.matrix.(*blocks); within && !s.blocks {
			continue
		}
		for _, r := range b.runs {
			if err := b.sound(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// leastInspected is how many rows are looked at in one thread.
const leastInspected = 64

// inThreads does rows in parts, one for each thread, and returns whether all are right.
func inThreads(rows run, right func(rows run) bool) bool {
	n := max(leastInspected, (rows.n+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	var wrong atomic.Bool
	var wg sync.WaitGroup
	for i := 0; i < rows.n; i += n {
		wg.Go(func() {
			if !right(rows.part(i, n)) {
				wrong.Store(true)
			}
		})
	}
	wg.Wait()
	return !wrong.Load()
}
