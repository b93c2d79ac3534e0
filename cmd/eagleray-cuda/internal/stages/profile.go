package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// What profile measures: layers of a model, of which the second one shows what all others do, and
// how often a step is computed after those that are not counted.
const (
	profiledLayers = 2
	profiledSteps  = 5
	uncounted      = 2
)

// profile measures each launch of the steps that bench measures, of models with few layers, by
// events around it: where the time goes. Launches are made one by one, not by a graph, and each has
// an event behind it: some microseconds of the shortest are the launch's own.
func (r *run) profile(ctx context.Context) error {
	r.eager = true
	list := measured()
	if r.tiny() {
		list = []Shape{tinyShape(64)}
	}
	for _, shape := range list {
		if len(r.Shapes) > 0 && !slices.Contains(r.Shapes, shape.Name) {
			continue
		}
		shape.Layers = profiledLayers
		if err := r.profileShape(ctx, &shape); err != nil {
			return fmt.Errorf("%s: %w", shape.Name, err)
		}
	}
	r.summary = fmt.Sprintf("models of %d layers, launch by launch", profiledLayers)
	return nil
}

func (r *run) profileShape(ctx context.Context, shape *Shape) (err error) {
	cfg, err := shape.config()
	if err != nil {
		return err
	}
	most := slices.Max(shape.batches)
	s, err := r.session(shape, cfg, r.Seed, most, shape.context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.fill(shape, r.Seed); err != nil {
		return err
	}
	var list []*step
	for _, n := range shape.batches {
		list = append(list, s.decode(shape, n))
	}
	for _, n := range shape.prefills {
		list = append(list, s.prefill(shape, n))
	}
	for _, x := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.profileStep(s, x); err != nil {
			return err
		}
	}
	return nil
}

// profileStep reports the launches of a step: each the median of several steps.
func (r *run) profileStep(s *session, x *step) error {
	var times [][]float64
	var launches []string
	for i := range uncounted + profiledSteps {
		s.watched.watch(i >= uncounted)
		if _, err := s.enqueue(x.batch, x.rows); err != nil {
			return err
		}
		s.watched.watch(false)
		if err := s.wait(); err != nil {
			return err
		}
		if i < uncounted {
			continue
		}
		took, err := s.watched.elapsed()
		if err != nil {
			return err
		}
		times, launches = append(times, took), slices.Clone(s.watched.launches)
	}
	total := 0.0
	for i, launch := range launches {
		var one []float64
		for _, t := range times {
			one = append(one, t[i])
		}
		total += median(one)
		row := Row{Name: fmt.Sprintf("%s, %d: %s", x.name, i, launch), Unit: "µs"}
		if !r.tiny() {
			row.Ours = figure(median(one))
		}
		r.report(row)
	}
	row := Row{Name: x.name, Unit: "µs", Listed: true, Note: fmt.Sprintf("%d launches of %d layers",
		len(launches), profiledLayers)}
	if !r.tiny() {
		row.Ours = figure(total)
	}
	r.report(row)
	return nil
}

// watched is a driver whose contexts can be watched: the one that was opened last is.
type watched struct {
	driver.Driver
	context *watchedContext
}

// watchedContext is a device that can have an event behind each launch.
type watchedContext struct {
	driver.Context
	names    map[driver.Function]string
	watching bool
	events   []driver.Event
	launches []string
}

// Open implements driver.Driver.
func (w *watched) Open(ordinal int) (driver.Context, error) {
	c, err := w.Driver.Open(ordinal)
	if err != nil {
		return nil, err
	}
	w.context = &watchedContext{Context: c, names: map[driver.Function]string{}}
	return w.context, nil
}

// Function implements driver.Context.
func (w *watchedContext) Function(m driver.Module, name string) (driver.Function, error) {
	f, err := w.Context.Function(m, name)
	w.names[f] = name
	return f, err
}

// Launch implements driver.Context.
func (w *watchedContext) Launch(l *driver.Launch, s driver.Stream) error {
	if !w.watching {
		return w.Context.Launch(l, s)
	}
	if len(w.launches) == 0 {
		if err := w.mark(0, s); err != nil {
			return err
		}
	}
	if err := w.Context.Launch(l, s); err != nil {
		return err
	}
	w.launches = append(w.launches, fmt.Sprintf("%s %d x %d x %d of %d", w.names[l.Function],
		l.Grid[0], l.Grid[1], l.Grid[2], l.Block[0]))
	return w.mark(len(w.launches), s)
}

// mark records an event, by its number.
func (w *watchedContext) mark(n int, s driver.Stream) error {
	if n == len(w.events) {
		e, err := w.NewEvent()
		if err != nil {
			return err
		}
		w.events = append(w.events, e)
	}
	return w.Record(w.events[n], s)
}

// watch begins to watch launches, or ends.
func (w *watchedContext) watch(on bool) {
	if w.watching = on; on {
		w.launches = w.launches[:0]
	}
}

// elapsed is how many microseconds each launch took from the end of the one before it.
func (w *watchedContext) elapsed() (list []float64, err error) {
	for i := range w.launches {
		took, err := w.Elapsed(w.events[i], w.events[i+1])
		if err != nil {
			return nil, err
		}
		list = append(list, float64(took)/float64(time.Microsecond))
	}
	return list, nil
}
