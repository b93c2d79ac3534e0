package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// laneBytes is how much of a cache is copied at a time: the host's work for it, and its wait, are
// little beside the copy.
const laneBytes = 1 << 20

// lanes are ways to the host and back beside the device's steps. Of the device they use what is the
// same until its end, and the context, which other threads may use too: never its stream, nor its
// first error, which belong to the goroutine of the steps. What a lane learns of a lost device the
// next step learns as well, since all calls of a lost context fail.
type lanes struct {
	mu   sync.Mutex
	idle []*lane // there are as many as were in use at once
}

// lane has a stream and pinned memory of its own. One goroutine uses it at a time.
type lane struct {
	ctx    driver.Context
	stream driver.Stream
	pinned []byte
	runs   []run // what of the device the used bytes of pinned are
	used   int
}

// run is bytes that lie one after the other.
type run struct {
	at    driver.Ptr
	bytes int
}

// lane is one that is idle, or a new one.
func (d *Device) lane() (*lane, error) {
	d.lanes.mu.Lock()
	if last := len(d.lanes.idle) - 1; last >= 0 {
		l := d.lanes.idle[last]
		d.lanes.idle = d.lanes.idle[:last]
		d.lanes.mu.Unlock()
		return l, nil
	}
	d.lanes.mu.Unlock()
	l := &lane{ctx: d.ctx}
	return l, l.entered(func() (err error) {
		if l.pinned, err = l.ctx.Pin(laneBytes); err != nil {
			return fmt.Errorf("%d bytes of pinned memory: %w", laneBytes, err)
		}
		if l.stream, err = l.ctx.NewStream(); err != nil {
			return errors.Join(err, l.ctx.Unpin(l.pinned))
		}
		return nil
	})
}

func (d *Device) idle(l *lane) {
	d.lanes.mu.Lock()
	defer d.lanes.mu.Unlock()
	d.lanes.idle = append(d.lanes.idle, l)
}

// entered calls f in a thread in which the context is current.
func (l *lane) entered(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.ctx.Enter(); err != nil {
		return err
	}
	return f()
}

// copied copies what the lane holds one way, and waits for it: the device is done with both sides
// then. A device that never is ends with its process, as it does in a step.
func (l *lane) copied(up bool) error {
	return l.entered(func() (err error) {
		b := l.pinned
		for _, r := range l.runs {
			if up {
				err = l.ctx.Upload(r.at, b[:r.bytes], l.stream)
			} else {
				err = l.ctx.Download(b[:r.bytes], r.at, l.stream)
			}
			if err != nil {
				break
			}
			b = b[r.bytes:]
		}
		waited := l.ctx.Synchronize(l.stream) // also for the copies before one that failed
		return cmp.Or(err, waited)
	})
}

// add adds as many bytes to what the lane holds as it has room for.
func (l *lane) add(at driver.Ptr, bytes int) int {
	n := min(bytes, len(l.pinned)-l.used)
	l.used += n
	if last := len(l.runs) - 1; last >= 0 && l.runs[last].at+driver.Ptr(l.runs[last].bytes) == at {
		l.runs[last].bytes += n
		return n
	}
	l.runs = append(l.runs, run{at, n})
	return n
}

// Read implements compute.Cache: f is given pinned memory.
func (c *cache) Read(spans iter.Seq[compute.Span], f func(b []byte) error) error {
	return c.d.transfer(c.runs(spans), func(l *lane) error {
		if err := l.copied(false); err != nil {
			return fmt.Errorf("copy KV blocks from the device: %w", err)
		}
		return f(l.pinned[:l.used])
	})
}

// Fill implements compute.Cache, as Read does.
func (c *cache) Fill(spans iter.Seq[compute.Span], f func(b []byte) error) error {
	return c.d.transfer(c.runs(spans), func(l *lane) error {
		if err := f(l.pinned[:l.used]); err != nil {
			return err
		}
		if err := l.copied(true); err != nil {
			return fmt.Errorf("copy KV blocks to the device: %w", err)
		}
		return nil
	})
}

// transfer has a lane hold runs, one after the other, and calls f whenever it is full, and at the
// end.
func (d *Device) transfer(runs iter.Seq[run], f func(l *lane) error) error {
	l, err := d.lane()
	if err != nil {
		return fmt.Errorf("copy beside the device's steps: %w", err)
	}
	defer d.idle(l)
	l.runs, l.used = l.runs[:0], 0
	for r := range runs {
		for r.bytes > 0 {
			if l.used == len(l.pinned) {
				if err := f(l); err != nil {
					return err
				}
				l.runs, l.used = l.runs[:0], 0
			}
			n := l.add(r.at, r.bytes)
			r.at, r.bytes = r.at+driver.Ptr(n), r.bytes-n
		}
	}
	if l.used == 0 {
		return nil
	}
	return f(l)
}

// runs are where spans are.
func (c *cache) runs(spans iter.Seq[compute.Span]) iter.Seq[run] {
	return func(yield func(run) bool) {
		for s := range spans {
			l := &c.shape.Layers[s.Layer]
			head := c.headBytes(l)
			block := s.Block * c.places[s.Layer].Factor
			at := block*l.Bytes(c.shape.BlockSize, c.shape.DType) + s.From*head
			if s.Values {
				at += l.Heads * head
			}
			if !yield(run{c.layers[s.Layer] + driver.Ptr(at), (s.To - s.From) * head}) {
				return
			}
		}
	}
}
