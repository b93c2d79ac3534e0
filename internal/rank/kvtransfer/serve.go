package kvtransfer

import (
	"bufio"
	"context"
	"fmt"
	"iter"
	"net"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/step"
)

// buffered is how many bytes of blocks are gathered for a write, or read at a time.
const buffered = 256 << 10

// serve answers the requests of one peer until it disconnects, is silent for patience, or a request
// fails. memory is that of a local connection, nil for TCP.
func (a *Agent) serve(c net.Conn, memory *segment) {
	r, w := bufio.NewReader(c), bufio.NewWriterSize(c, buffered)
	for {
		var q request
		c.SetDeadline(time.Now().Add(patience))
		if err := readMessage(r, maxRequest, &q); err != nil {
			return // the peer is gone, or a stranger
		}
		err := a.answer(c, memory, w, &q)
		if err != nil {
			c.SetDeadline(time.Now().Add(patience))
			_ = writeMessage(w, answer{Error: err.Error()})
		}
		if w.Flush() != nil || err != nil {
			return
		}
	}
}

// answer serves one request. Its errors go to the peer.
func (a *Agent) answer(c net.Conn, memory *segment, w *bufio.Writer, q *request) error {
	h, err := a.find(q.Secret)
	if err != nil {
		return err
	}
	switch q.Op {
	case "describe":
		a.mu.Lock()
		ranks := a.ranks
		a.mu.Unlock()
		return writeMessage(w, answer{Version: version, Shape: &a.opt.Shape,
			Ranks: ranks})
	case "read":
		return a.read(c, memory, w, h, q)
	case "done":
		if q.Ranks < 1 || q.Ranks > maxRanks || q.Rank < 0 || q.Rank >= q.Ranks {
			return fmt.Errorf("rank %d of %d is done", q.Rank, q.Ranks)
		}
		a.mu.Lock()
		h.ranks[q.Rank] = true
		if len(h.ranks) >= q.Ranks && !closed(h.fetched) {
			close(h.fetched)
		}
		a.mu.Unlock()
		return writeMessage(w, answer{})
	}
	return fmt.Errorf("unknown request %.20q", q.Op)
}

// find returns the pin of a secret, once its blocks are computed. It waits for a pin that is not
// there: the ticket may reach a peer before the driver's call reaches this rank.
func (a *Agent) find(s Secret) (*pin, error) {
	ctx, cancel := context.WithTimeout(a.life, a.opt.Early)
	defer cancel()
	name := nameOf(s)
	var h *pin
	if a.await(ctx, func() bool {
		h = a.pins[name]
		return h != nil && a.done.Load() >= h.Plan || slices.Contains(a.released[:], name)
	}) != nil || h == nil {
		return nil, fmt.Errorf("the blocks are not held here, or not any more")
	}
	return h, nil
}

// read sends the part of blocks that a peer asks for.
func (a *Agent) read(c net.Conn, memory *segment, w *bufio.Writer, h *pin, q *request) error {
	part := q.Part
	switch {
	case q.Digest != h.Digest || q.First+q.Count != len(h.Blocks):
		return fmt.Errorf("the blocks are of another prompt, or of another cache salt")
	case q.First < 0 || q.Count < 1 || q.First%a.opt.Shape.Groups() > 0:
		return fmt.Errorf("%d blocks from %d on are asked for", q.Count, q.First)
	case a.lacks(h.Blocks[q.First:]):
		return fmt.Errorf("blocks from %d on are asked for, some of which were not kept", q.First)
	case !a.has(part):
		return fmt.Errorf("layers %v and heads %v are asked for, rank %d has others",
			part.Layers, part.Heads, a.opt.Rank)
	}
	size, err := a.opt.Shape.Bytes(part, h.Blocks[q.First:])
	if err != nil {
		return err
	}
	a.mu.Lock()
	over := h.released
	if !over {
		h.readers[c] = true
	}
	a.mu.Unlock()
	if over {
		return fmt.Errorf("the blocks are not held any more")
	}
	defer func() {
		a.mu.Lock()
		delete(h.readers, c)
		a.notify()
		a.mu.Unlock()
	}()
	if err := writeMessage(w, answer{Bytes: size}); err != nil {
		return err
	}
	if err := a.send(c, memory, w, a.spans(part, h.Blocks[q.First:])); err != nil {
		// The answer with the error is not to be taken for bytes of blocks.
		_, _ = w.Write(appendPortion(nil, 0))
		return err
	}
	return nil
}

// send sends the bytes of spans in portions.
func (a *Agent) send(c net.Conn, memory *segment, w *bufio.Writer,
	spans iter.Seq[compute.Span]) error {
	waits := func() { c.SetDeadline(time.Now().Add(patience)) }
	if memory == nil {
		return a.opt.Memory.Read(spans, func(b []byte) error {
			if w.Available() < portionHead+len(b) {
				waits()
			}
			if _, err := w.Write(appendPortion(w.AvailableBuffer(), len(b))); err != nil {
				return err
			}
			_, err := w.Write(b)
			return err
		})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	f := &filler{segment: memory, c: c, waits: waits}
	if err := a.opt.Memory.Read(spans, func(b []byte) error {
		_, err := f.Write(b)
		return err
	}); err != nil {
		return err
	}
	return f.finish()
}

func within(x, of [2]int) bool { return x[0] >= of[0] && x[0] < x[1] && x[1] <= of[1] }

// lacks tells whether a table lacks blocks that are read whatever comes after them: of the one
// group of layers, or the first of several. What others lack their peers do not ask for.
func (a *Agent) lacks(table []uint32) bool {
	groups := a.opt.Shape.Groups()
	for i := 0; i < len(table); i += groups {
		if table[i] == step.NoBlock {
			return true
		}
	}
	return false
}

// has tells whether this rank has a part.
func (a *Agent) has(p Part) bool {
	if !within(p.Layers, a.opt.Shape.layers(a.opt.Rank)) {
		return false
	}
	for layer := p.Layers[0]; layer < p.Layers[1]; layer++ {
		if !within(p.Heads, a.heads(layer)) {
			return false
		}
	}
	return true
}

// heads are those that this rank has of a layer.
func (a *Agent) heads(layer int) [2]int {
	return a.opt.Shape.heads(layer, a.opt.Shape.Layout.Sizes().Place(a.opt.Rank).TP)
}

// spans are where the rank has a part of blocks.
func (a *Agent) spans(p Part, blocks []uint32) iter.Seq[compute.Span] {
	return a.opt.Shape.Spans(a.opt.Rank, p, blocks)
}
