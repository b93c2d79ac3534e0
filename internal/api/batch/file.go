package batch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
)

// Offline is a batch from one file to another, as run-batch has it.
type Offline struct {
	// Input has the rows. It is read twice: to count them, and to ask them.
	Input io.ReadSeeker
	// Output is the path of the answers, in the order in which they come. Rows that are answered
	// there are not asked again.
	Output string
	// MaxLine bounds a row, in bytes.
	MaxLine int
	Limiter *Limiter
	// Open is called before the first row is asked, and not where none is left to ask.
	Open func(context.Context) (Do, error)
	// Progress is told of each row that is over, one call after the other; nil for no need.
	Progress func(Counts)
}

// Counts are numbers of rows.
type Counts struct {
	Total, Completed, Failed int
	// Before are those of Completed and Failed that an earlier run has answered.
	Before int
}

// Run asks every row that has no answer yet. An error leaves an output that another Run goes on
// with.
func (f *Offline) Run(ctx context.Context) (c Counts, err error) {
	var answered done
	out, err := openSpool(f.Output, func(_ int, o *outcome) error {
		c.count(o)
		c.Before++
		return answered.add(o)
	})
	if err != nil {
		return c, err
	}
	defer func() {
		if closing := out.close(); err == nil {
			err = closing
		}
	}()
	if err := f.compare(answered, &c); err != nil {
		return c, err
	}
	var mu sync.Mutex
	tell := func() {
		if f.Progress != nil {
			f.Progress(c)
		}
	}
	if tell(); c.Before == c.Total {
		return c, nil
	}
	do, err := f.Open(ctx)
	if err != nil {
		return c, err
	}
	p := &pump{input: f.Input, most: f.MaxLine, done: answered, limiter: f.Limiter, do: do,
		emit: func(_ *Row, o *outcome) error {
			line, err := o.line()
			if err != nil {
				return err
			}
			if err := out.append(line); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			c.count(o)
			tell()
			return nil
		}}
	err = p.run(ctx)
	return c, err
}

// compare counts the rows of the input, and wants those that have been answered to be among them.
func (f *Offline) compare(answered done, c *Counts) error {
	l, found := newLines(f.Input, f.MaxLine), 0
	for {
		line, err := l.next()
		if err == io.EOF {
			break
		}
		if err != nil && err != errTooLong {
			return err
		}
		if err == nil && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		c.Total++
		sum := uint32(1)
		if err == nil {
			sum = sumOf(line)
		}
		there, err := answered.has(l.number, sum)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Output, err)
		}
		if there {
			found++
		}
	}
	if found < c.Before {
		return fmt.Errorf("%s: %d rows are not in the input: it %w",
			f.Output, c.Before-found, errOther)
	}
	_, err := f.Input.Seek(0, io.SeekStart)
	return err
}

func (c *Counts) count(o *outcome) {
	if succeeded(o) {
		c.Completed++
	} else {
		c.Failed++
	}
}
