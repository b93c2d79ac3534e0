package rlhf

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// splitting opens a server that exchanges KV blocks and has no other use for those of before.
func splitting(t *testing.T, tp int) *server { return splittingBlocks(t, tp, 16) }

// splittingBlocks is splitting with blocks of a size.
func splittingBlocks(t *testing.T, tp, size int) *server {
	t.Helper()
	s := open(t, func(c *config.Config) {
		c.Cache.BlockSize = size
		c.Cache.PrefixCaching = false
		if c.Parallel.TensorParallelSize = tp; tp > 1 {
			c.Parallel.Backend = "mp"
		}
		ok(t, c.Transfer.Set(`{"kv_connector":"EagleRayConnector","kv_role":"kv_both"}`))
	})
	_, err := s.Init(t.Context(), true)
	ok(t, err)
	return s
}

const splitQuestion = "What is exchanged by two servers that were trained together for a while?"

// ticket has a server compute a prompt for another one.
func ticket(t *testing.T, e *engine.Engine) (k *kvtransfer.Ticket) {
	t.Helper()
	r := request(e, splitQuestion, 1)
	r.HandOver = true
	each(t, submit(t, e, r), func(d engine.Delta) {
		if d.Ticket != nil {
			k = d.Ticket
		}
	})
	return k
}

// goOn has a server go on from what another one has computed; cached is how much of that came.
func goOn(t *testing.T, e *engine.Engine, k *kvtransfer.Ticket) (a answer, cached int) {
	t.Helper()
	r := request(e, splitQuestion, 8)
	r.Ticket = k
	each(t, submit(t, e, r), func(d engine.Delta) {
		a.tokens = append(a.tokens, d.Tokens...)
		cached = d.CachedTokens
	})
	return a, cached
}

// TestSplitAfterUpdates lets two servers exchange KV blocks that take updates of their weights:
// they do while both have the same, in whatever files it came, and never while one bit of one
// tensor differs. What they answer is always what they answer alone.
func TestSplitAfterUpdates(t *testing.T) {
	list := others(t)
	reversed := slices.Clone(list)
	slices.Reverse(reversed)
	nearly := slices.Clone(list)
	last := &nearly[len(nearly)-1]
	last.Data = bytes.Clone(last.Data)
	last.Data[0] ^= 1
	first, same, other := file(t, t.TempDir(), list), file(t, t.TempDir(), reversed),
		file(t, t.TempDir(), nearly)
	from, to := splitting(t, 1), splitting(t, 2)
	producer, consumer := from.engines[0], to.engines[0]
	for _, step := range []struct {
		what     string
		on       *server
		path     string
		exchange bool
	}{
		{"as loaded", nil, "", true},
		{"only one has an update", from, first, false},
		{"both have it", to, same, true},
		{"one bit differs", to, other, false},
		{"both have it again", to, first, true},
		{"the other one has the bit", from, other, false},
	} {
		var before *kvtransfer.Ticket
		if step.on != nil {
			before = ticket(t, producer)
			step.on.update(t, step.path)
		}
		alone, _ := goOn(t, consumer, nil)
		got, cached := goOn(t, consumer, ticket(t, producer))
		if !reflect.DeepEqual(got, alone) {
			t.Errorf("%s: %v, alone %v", step.what, got, alone)
		}
		if (cached > 0) != step.exchange {
			t.Errorf("%s: %d tokens came", step.what, cached)
		}
		if before == nil {
			continue
		}
		// A ticket from before the update brings nothing of the old weights.
		if got, cached = goOn(t, consumer, before); !reflect.DeepEqual(got, alone) || cached > 0 &&
			!step.exchange {
			t.Errorf("%s, with a ticket from before: %v, alone %v; %d tokens came", step.what, got,
				alone, cached)
		}
	}
}

// TestSplitAfterReset empties the producer's prefix cache while another server has yet to fetch
// blocks: they stay what they were until it has.
func TestSplitAfterReset(t *testing.T) {
	from, to := splitting(t, 1), splitting(t, 1)
	producer, consumer := from.engines[0], to.engines[0]
	alone, _ := goOn(t, consumer, nil)
	k := ticket(t, producer)
	done, err := from.ResetPrefixCache(t.Context(), false, false)
	if ok(t, err); !done {
		t.Error("the prefix cache was not emptied")
	}
	each(t, submit(t, producer, request(producer, "Who was there first? "+splitQuestion, 1)),
		func(engine.Delta) {})
	got, cached := goOn(t, consumer, k)
	if !reflect.DeepEqual(got, alone) || cached == 0 {
		t.Errorf("%v, alone %v; %d tokens came", got, alone, cached)
	}
}

// TestSplitOtherBlocks: a server whose blocks are larger computes what others have of a prompt,
// whether or not that fills blocks of its own.
func TestSplitOtherBlocks(t *testing.T) {
	producer := splitting(t, 1).engines[0]
	for _, size := range []int{32, 48} {
		consumer := splittingBlocks(t, 1, size).engines[0]
		alone, _ := goOn(t, consumer, nil)
		got, cached := goOn(t, consumer, ticket(t, producer))
		if !reflect.DeepEqual(got, alone) || cached > 0 {
			t.Errorf("blocks of %d: %v, alone %v; %d tokens came", size, got, alone, cached)
		}
	}
}

// TestTicketUnread: the blocks of a prompt are free once its reader has gone without the ticket,
// before the request has ended or after.
func TestTicketUnread(t *testing.T) {
	e := splitting(t, 1).engines[0]
	for i := range 40 {
		r := request(e, strings.Repeat(splitQuestion, 4), 1)
		r.HandOver = true
		s := submit(t, e, r)
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		s.Close()
	}
	for late := time.Now().Add(patience); e.Totals().BlocksUsed > 0; {
		if time.Now().After(late) {
			t.Fatalf("%d blocks are kept", e.Totals().BlocksUsed)
		}
		time.Sleep(time.Millisecond)
	}
}
