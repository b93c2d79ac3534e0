package layouts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/kvtransfer"
	"github.com/eagleray/eagleray/internal/router"
	"github.com/eagleray/eagleray/internal/sample"
)

// TestSplit computes the prompts of workloads on one engine and goes on from them on another one, both
// divided in any way, and wants what one engine gives. Some of the transfers are lost.
func TestSplit(t *testing.T) {
	workloads, cells, least := 32, 3, 300
	if testing.Short() {
		workloads, cells, least = 4, 1, 20
	}
	var n count
	received := 0
	for seed := uint64(1001); seed < uint64(1001+workloads); seed++ {
		w := draw(seed)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			want := reference(t, w)
			rng := rand.New(rand.NewPCG(seed, 4))
			sizes := layouts(t, &w.model)
			for range cells {
				from, to := pick(rng, sizes...).vary(rng), pick(rng, sizes...).vary(rng)
				from.Block, from.DP = to.Block, 1
				got, err := runSplit(t.Context(), w, from, to)
				if err == nil {
					if d := firstDifference(got, want); d != "" {
						err = errors.New(d)
					}
				}
				if err != nil {
					t.Errorf("%v\nmodel %v, seed %d\nfrom %v\nto %v", err, &w.model, seed, from, to)
					continue
				}
				for i := range got {
					for _, g := range got[i] {
						n.outcomes++
						n.tokens += len(g.tokens)
						if g.cached > 0 && to.Cache == "off" {
							received++
						}
					}
				}
			}
		})
	}
	t.Logf("%d outputs, %d tokens compared; %d outputs certainly went on from blocks of another engine",
		n.outcomes, n.tokens, received)
	if n.outcomes < least || received == 0 {
		t.Errorf("%d outputs were compared, of at least %d; %d are of the split", n.outcomes, least, received)
	}
}

// runSplit runs a workload by two engines.
func runSplit(ctx context.Context, w *workload, from, to cell) (all [][]outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	rng := rand.New(rand.NewPCG(w.seed, 5))
	memory := rng.IntN(3) > 0
	open := func(c cell, role string) (*router.Router, error) {
		cfg := c.config(&w.model)
		if err := cfg.Transfer.Set(fmt.Sprintf(`{"kv_connector":"EagleRayConnector","kv_role":%q,
			"kv_connector_extra_config":{"hold_timeout_seconds":2,"shared_memory":%v}}`, role,
			memory)); err != nil {
			return nil, err
		}
		e, _, err := router.Open(ctx, engine.Options{Config: cfg})
		return e, err
	}
	producer, err := open(from, "kv_producer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, producer.Stop(context.WithoutCancel(ctx))) }()
	consumer, err := open(to, "kv_consumer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, consumer.Stop(context.WithoutCancel(ctx))) }()
	r := &running{ctx: ctx, engine: consumer, mixed: to.Batch == "mixed"}
	lost := make([]int, len(w.submissions))
	for i := range lost {
		lost[i] = rng.IntN(8)
	}
	r.before = func(i int, s *submission) error {
		t, err := prefill(ctx, producer, s.requests[0])
		if err != nil || t == nil {
			return err
		}
		switch lost[i] {
		case 0:
			t.Port, t.Local = 1, "" // nobody is there
		case 1:
			t.Fingerprint[0]++ // a stranger is
		}
		requests := make([]*engine.Request, len(s.requests))
		for j, q := range s.requests {
			c := *q
			c.Ticket, requests[j] = t, &c
		}
		s.requests = requests
		return nil
	}
	runs := 1
	if to.Cache == "warm" {
		runs = 2
	}
	for range runs {
		if all, err = r.workload(w, nil); err != nil {
			return nil, fmt.Errorf("%w\nproducer: %+v\nconsumer: %+v", err, producer.Report(), consumer.Report())
		}
	}
	return all, nil
}

// prefill computes a prompt, and returns the ticket for it as a client gets it: nil for a prompt
// that fills no block.
func prefill(ctx context.Context, producer *router.Router, q *engine.Request) (*kvtransfer.Ticket, error) {
	p := *q
	p.Params = sample.Params{TopP: 1, RepetitionPenalty: 1, MaxTokens: 1, EOS: -1,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs}
	p.Constraint, p.Stop, p.HandOver = q.Constraint, nil, true
	stream, err := producer.Submit(ctx, &p)
	if err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	defer stream.Close()
	var ticket *kvtransfer.Ticket
	for {
		d, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			return ticket, nil
		}
		if err != nil {
			return nil, fmt.Errorf("prefill: %w", err)
		}
		if d.Ticket == nil {
			continue
		}
		text, err := json.Marshal(d.Ticket)
		if err != nil {
			return nil, err
		}
		ticket = new(kvtransfer.Ticket)
		if err := json.Unmarshal(text, ticket); err != nil {
			return nil, err
		}
	}
}

// TestProducerKilled loses the producer while its blocks are to be fetched, and expects the answer
// all the same.
func TestProducerKilled(t *testing.T) {
	w := drawOn(7, tiny())
	q := engine.NewRequest(tokens(rand.New(rand.NewPCG(7, 7)), w.model.vocab, 100), sample.Params{TopP: 1,
		RepetitionPenalty: 1, MaxTokens: 5, EOS: -1, Logprobs: 3, PromptLogprobs: sample.NoLogprobs})
	w.submissions = []submission{{requests: []*engine.Request{q}, after: -1}}
	want := reference(t, w)
	open := func() *router.Router {
		cfg := plain.config(&w.model)
		if err := cfg.Transfer.Set(`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`); err != nil {
			t.Fatal(err)
		}
		e, _, err := router.Open(t.Context(), engine.Options{Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Stop(context.WithoutCancel(t.Context())) })
		return e
	}
	producer, consumer := open(), open()
	ticket, err := prefill(t.Context(), producer, q)
	if err != nil || ticket == nil {
		t.Fatalf("no ticket, %v", err)
	}
	over, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	producer.Stop(over)
	q.Ticket = ticket
	r := &running{ctx: t.Context(), engine: consumer}
	got, err := r.workload(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := firstDifference(got, want); d != "" || got[0][0].cached > 0 {
		t.Errorf("%s; %d tokens came", d, got[0][0].cached)
	}
}

// TestGoneWhileReceiving has the client of a request go while its blocks come from a producer that is
// stuck. The consumer's blocks are free long before the time for it is over.
func TestGoneWhileReceiving(t *testing.T) {
	w := drawOn(7, tiny())
	q := engine.NewRequest(tokens(rand.New(rand.NewPCG(7, 7)), w.model.vocab, 100), sample.Params{TopP: 1,
		RepetitionPenalty: 1, MaxTokens: 5, EOS: -1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs})
	c := plain.config(&w.model)
	if err := c.Transfer.Set(`{"kv_connector":"EagleRayConnector","kv_role":"kv_both",
		"kv_connector_extra_config":{"fetch_timeout_seconds":3600}}`); err != nil {
		t.Fatal(err)
	}
	e, _, err := router.Open(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop(context.WithoutCancel(t.Context()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	q.Ticket = &kvtransfer.Ticket{Tokens: 96, Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
	stream, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	used := func(are bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); e.Totals().BlocksUsed > 0 != are; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", e.Totals())
			}
		}
	}
	used(true)
	stream.Close()
	used(false)
}
