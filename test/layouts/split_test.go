package layouts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// TestSplit computes the prompts of workloads on one engine and goes on from them on another one,
// both divided in any way, and wants what one engine gives. Some of the transfers are lost.
func TestSplit(t *testing.T) {
	workloads, cells, least := 32, 3, 300
	if testing.Short() {
		workloads, cells, least = 2, 1, 8
	}
	var n count
	received := 0
	for seed := uint64(1001); seed < uint64(1001+workloads); seed++ {
		w := draw(seed)
		if w.model.states {
			continue // these are not handed over
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			want := reference(t, w)
			rng := rand.New(rand.NewPCG(seed, 4))
			sizes := layouts(t, &w.model)
			for i := range cells {
				from, to := pick(rng, sizes...).vary(rng), pick(rng, sizes...).vary(rng)
				from.Block = to.Block
				if i == 0 {
					to.Cache = "off" // what is found there is of the split
				}
				if b := pick(rng, processes...); i == 0 && seed%2 == 0 && from.runsOn(b) {
					from.Backend = b
				} else if i == 0 && to.runsOn(b) {
					to.Backend = b
				}
				got, err := runSplit(t.Context(), w, from, to, nil)
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
	t.Logf("%d outputs, %d tokens compared; %d outputs certainly went on from blocks of another "+
		"engine", n.outcomes, n.tokens, received)
	if n.outcomes < least || received == 0 {
		t.Errorf("%d outputs were compared, of at least %d; %d are of the split", n.outcomes, least,
			received)
	}
}

// TestSplitPlaces splits between data parallel places with one set of experts, whose blocks are of
// one place each, and other layouts: of every model with experts, with -short of one.
func TestSplitPlaces(t *testing.T) {
	pairs := [][2]string{
		{"dp=2,ep=true", "dp=2,ep=true"},
		{"dp=2,ep=true,tp=2", "tp=2,pp=2"},
		{"pcp=2", "dp=2,ep=true,pp=2"},
		{"dp=2,pcp=2,ep=true", "dp=2,ep=true"},
	}
	split := 0
	for i, m := range models {
		m.dtype, m.cacheDType = "bfloat16", "auto"
		l := cellOf(t, pairs[0][0]).layout()
		if m.states || !m.fits(t, l) || testing.Short() && split == len(pairs) {
			continue
		}
		w := drawOn(uint64(1+i), m)
		want := reference(t, w)
		rng := rand.New(rand.NewPCG(w.seed, 6))
		for _, pair := range pairs {
			from, to := cellOf(t, pair[0]), cellOf(t, pair[1])
			if !m.fits(t, from.layout()) || !m.fits(t, to.layout()) {
				continue
			}
			from, to = from.vary(rng), to.vary(rng)
			from.Method, to.Method = "ngram", "ngram"      // a head is of another checkpoint
			from.Block, to.Block, to.Cache = 16, 16, "off" // what is found there is of the split
			got, err := runSplit(t.Context(), w, from, to, nil)
			if err == nil {
				if d := firstDifference(got, want); d != "" {
					err = errors.New(d)
				}
			}
			received := 0
			for i := range got {
				for _, g := range got[i] {
					received += g.cached
				}
			}
			if err != nil || received == 0 {
				t.Errorf("%v, %d tokens came\nmodel %v, seed %d\nfrom %v\nto %v", err, received, &m,
					w.seed, from, to)
			}
			split++
		}
	}
	t.Logf("%d splits", split)
	if split < len(pairs) {
		t.Errorf("%d splits", split)
	}
}

// splitEngines are a producer and a consumer, and their secret.
type splitEngines struct {
	producer, consumer *replicas.Router
	token              []byte
}

// openSplit opens the engines of a split; what is returned ends them.
func openSplit(ctx context.Context, w *workload, from, to cell, memory bool) (s *splitEngines,
	end func() error, err error) {
	dir, err := os.MkdirTemp("", "eagleray-split")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
		return nil, nil, err
	}
	sealing, err := nodes.ReadToken(token)
	if err != nil {
		return nil, nil, err
	}
	open := func(c cell, role string) (*replicas.Router, func() error, error) {
		e, left, err := open(ctx, w, c, func(cfg *config.Config) error {
			cfg.Parallel.Nodes.TokenFile = token
			return cfg.Transfer.Set(fmt.Sprintf(`{"kv_connector":"EagleRayConnector","kv_role":%q,
				"kv_connector_extra_config":{"hold_timeout_seconds":2,"shared_memory":%v}}`, role, memory))
		})
		return e, func() error { return errors.Join(e.Stop(context.WithoutCancel(ctx)), left()) },
			err
	}
	producer, endProducer, err := open(from, "kv_producer")
	if err != nil {
		return nil, nil, fmt.Errorf("producer: %w", err)
	}
	consumer, endConsumer, err := open(to, "kv_consumer")
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("consumer: %w", err), endProducer())
	}
	return &splitEngines{producer, consumer, sealing[:]}, func() error {
		return errors.Join(endConsumer(), endProducer())
	}, nil
}

// free waits until neither engine has a block in use.
func (s *splitEngines) free(ctx context.Context) error {
	for {
		from, to := s.producer.Totals().BlocksUsed, s.consumer.Totals().BlocksUsed
		if from == 0 && to == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d blocks of the producer, %d of the consumer are in use at the end",
				from, to)
		case <-time.After(time.Millisecond):
		}
	}
}

// runSplit runs a workload by two engines. during is called with each submission before the
// consumer has it.
func runSplit(ctx context.Context, w *workload, from, to cell, during func(*splitEngines, int)) (
	all [][]outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	rng := rand.New(rand.NewPCG(w.seed, 5))
	s, end, err := openSplit(ctx, w, from, to, rng.IntN(3) > 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	producer, consumer := s.producer, s.consumer
	r := &running{ctx: ctx, engine: consumer, mixed: to.Batch == "mixed"}
	lost := make([]int, len(w.submissions))
	for i := range lost {
		lost[i] = rng.IntN(8)
	}
	r.before = func(i int, q *submission) error {
		t, err := prefill(ctx, producer, q.requests[0])
		if err != nil || t == nil {
			return err
		}
		if lost[i] < 2 { // the consumer will not find the producer, which hears that from here
			if err := kvtransfer.Cancel(ctx, t); err != nil && during == nil {
				return err
			}
		}
		switch lost[i] {
		case 0:
			t.Port, t.Local = 1, "" // no agent listens there
		case 1:
			t.Fingerprint[0]++ // a stranger is
		}
		t.SealBy(s.token)
		requests := make([]*engine.Request, len(q.requests))
		for j, r := range q.requests {
			c := *r
			c.Ticket, requests[j] = t, &c
		}
		q.requests = requests
		return nil
	}
	if during != nil {
		prepare := r.before
		r.before = func(i int, q *submission) error {
			err := prepare(i, q)
			during(s, i)
			return err
		}
	}
	runs := 1
	if to.Cache == "warm" {
		runs = 2
	}
	for range runs {
		if all, err = r.workload(w, nil); err != nil {
			return nil, fmt.Errorf("%w\nproducer: %+v\nconsumer: %+v", err, producer.Report(),
				consumer.Report())
		}
	}
	return all, s.free(ctx)
}

// prefill computes a prompt, and returns the ticket for it as a client gets it: nil for a prompt
// that fills no block.
func prefill(ctx context.Context, producer *replicas.Router, q *engine.Request) (*kvtransfer.Ticket,
	error) {
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
	q := engine.NewRequest(tokens(rand.New(rand.NewPCG(7, 7)), w.model.vocab, 100),
		sample.Params{TopP: 1,
			RepetitionPenalty: 1, MaxTokens: 5, EOS: -1, Logprobs: 3,
			PromptLogprobs: sample.NoLogprobs})
	w.submissions = []submission{{requests: []*engine.Request{q}, after: -1}}
	want := reference(t, w)
	open := func() *replicas.Router {
		cfg := plain.config(&w.model)
		if err := cfg.Transfer.Set(
			`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`); err != nil {
			t.Fatal(err)
		}
		e, _, err := replicas.Open(t.Context(), engine.Options{Config: cfg})
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

// TestGoneWhileReceiving has the client of a request go while its blocks come from a producer that
// is stuck. The consumer's blocks are free long before the time for it is over.
func TestGoneWhileReceiving(t *testing.T) {
	w := drawOn(7, tiny())
	q := engine.NewRequest(tokens(rand.New(rand.NewPCG(7, 7)), w.model.vocab, 100),
		sample.Params{TopP: 1,
			RepetitionPenalty: 1, MaxTokens: 5, EOS: -1, Logprobs: sample.NoLogprobs,
			PromptLogprobs: sample.NoLogprobs})
	c := plain.config(&w.model)
	if err := c.Transfer.Set(`{"kv_connector":"EagleRayConnector","kv_role":"kv_both",
		"kv_connector_extra_config":{"fetch_timeout_seconds":3600}}`); err != nil {
		t.Fatal(err)
	}
	e, _, err := replicas.Open(t.Context(), engine.Options{Config: c})
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
		for end := time.Now().Add(
			time.Minute); e.Totals().BlocksUsed > 0 != are; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", e.Totals())
			}
		}
	}
	used(true)
	stream.Close()
	used(false)
}

// killRank ends a process of an engine's ranks.
func killRank(e *replicas.Router, rank int) error {
	ranks := e.Report()
	if len(ranks) == 0 || ranks[rank%len(ranks)].PID == os.Getpid() {
		return nil // there is none just now
	}
	if err := syscall.Kill(ranks[rank%len(ranks)].PID, syscall.SIGKILL); err != nil &&
		!errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// TestSplitRanksKilled kills ranks of the producer and of the consumer while prompts are computed,
// travel and are gone on from. Answers are those of one engine, and no block stays in use.
func TestSplitRanksKilled(t *testing.T) {
	pairs, seeds := [][2]string{
		{"backend=mp,tp=2", "backend=mp,tp=1"},
		{"backend=mp,pp=2", "backend=mp,tp=2"},
		{"backend=link,pcp=2", "backend=nodes,tp=2"},
		{"backend=nodes,tp=2", "backend=mp,pp=2,dp=2"},
		{"backend=mp,dp=2,ep=true", "backend=mp,dp=2,ep=true"},
	}, 3
	if testing.Short() {
		pairs, seeds = pairs[:1], 1
	}
	for i, pair := range pairs {
		for seed := range uint64(seeds) {
			from, to := cellOf(t, pair[0]), cellOf(t, pair[1])
			m := tiny()
			if from.EP {
				m.folder = "models/qwen3moe-tiny"
			}
			w := drawOn(100+seed, m)
			want := reference(t, w)
			from.Batch, to.Batch = "mixed", "mixed"
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			var killing sync.Mutex
			kills := 0
			got, err := runSplit(t.Context(), w, from, to, func(s *splitEngines, i int) {
				killing.Lock()
				defer killing.Unlock()
				e := []*replicas.Router{s.producer, s.consumer}[i%2]
				if kills++; i < 4 {
					if err := killRank(e, rng.IntN(4)); err != nil {
						t.Error(err)
					}
				}
			})
			if err == nil {
				if d := firstDifference(got, want); d != "" {
					err = errors.New(d)
				}
			}
			if err != nil || kills < 4 {
				t.Errorf("from %s to %s, seed %d, %d kills: %v", pair[0], pair[1], seed, kills, err)
			}
		}
	}
}

func cellOf(t *testing.T, text string) cell {
	t.Helper()
	c, err := parseCell(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
