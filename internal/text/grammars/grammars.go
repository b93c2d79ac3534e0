// Package grammars compiles the constraints of requests, each once, away from the caller that asks
// for it, and keeps what it compiled for the requests that come later. The driver asks it whether a
// constraint can be enforced at all, and has the answer kept only; the rank that samples takes its
// masks from it. Both compile the same text, with the same budget, to the same grammar: nothing
// else crosses between them. What grammars hold is bounded, each and all together, and goes back to
// the operating system when they are gone.
package grammars

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// kept is how many grammars stay when no request uses them, keptText how many bytes of text they
// have together, and keptBytes of tables, as constrain.Compiled counts them, after sweepDelay.
const (
	kept       = 256
	keptText   = 16 << 20
	keptBytes  = 32 << 20
	sweepDelay = 10 * time.Second
)

// mostBytes is how many bytes the tables of all grammars and the ways of all answers have together,
// those in use included, and compileBytes how many one that is being compiled may come to. Tables
// that have come to freshBytes more than when they were compiled are for the answers that have
// begun: others begin with fresh ones, so that what many answers have found out does not end one.
// leastBytes is room for one that is compiled beside others in use.
const (
	mostBytes    = 512 << 20
	leastBytes   = 2 * compileBytes
	compileBytes = 64 << 20
	freshBytes   = 24 << 20
)

// mostAtOnce is how many compile at a time at most: each has memory.
const mostAtOnce = 4

// quick is how many operations may be done at once for a mask: some milliseconds, however they fall
// out.
const quick = 4000

// ErrClosed is why a grammar has not been compiled that was asked for when the cache was closed.
var ErrClosed = errors.New("grammars are closed")

// Cache compiles grammars over one vocabulary. Its methods may be called from several goroutines.
type Cache struct {
	vocabulary func() (*constrain.Vocabulary, error)
	limits     constrain.Limits
	// brief and long bound how many grammars compile at a time. Each first compiles within brief
	// limits; a grammar that exceeds them compiles in a slot of long, so that brief ones do not
	// wait for it.
	brief, long chan struct{}
	// aside bounds the long look-ups of masks at a time, each of another grammar.
	aside  chan struct{}
	closed chan struct{}
	// most is how many bytes all tables and ways may have together.
	most  atomic.Int64
	tasks sync.WaitGroup

	mu       sync.Mutex
	grammars map[constrain.Spec]*list.Element // of *Grammar
	recent   *list.List                       // the one used last is the first
	text     int
	// held are the bytes of all tables, idle those of grammars that no request uses, using how many
	// grammars are used, and compiling how many are being compiled.
	held, idle       int
	using, compiling int
	freed            chan struct{} // closed, and replaced, when there is more room
	sweeping         bool
	over             bool
	shed             shedder
}

// New returns a cache that compiles so many grammars at a time, at least one and at most four, and
// as many that take long. It calls vocabulary once, when the first grammar is compiled.
func New(vocabulary func() (*constrain.Vocabulary, error), atOnce int) *Cache {
	atOnce = min(max(1, atOnce), mostAtOnce)
	c := &Cache{
		vocabulary: sync.OnceValues(vocabulary),
		brief:      make(chan struct{}, atOnce), long: make(chan struct{}, atOnce),
		aside:  make(chan struct{}, max(2, runtime.GOMAXPROCS(0)/2)),
		closed: make(chan struct{}), grammars: map[constrain.Spec]*list.Element{},
		recent: list.New(), freed: make(chan struct{}),
	}
	c.most.Store(mostBytes)
	return c
}

// Limit sets how many bytes the tables of all grammars and the ways of all answers may have
// together, from 128 MiB to 512 MiB, which it is before.
func (c *Cache) Limit(bytes int64) { c.most.Store(min(max(bytes, leastBytes), mostBytes)) }

// Check says whether a constraint can be enforced: it compiles it, unless that has been done, or
// another caller is compiling it: then the result is cached already. An error is a *constrain.Error
// when the text is at fault. When no other request uses the grammar, its tables are dropped.
func (c *Cache) Check(ctx context.Context, s constrain.Spec) (kept bool, err error) {
	c.mu.Lock()
	g, isNew := c.get(s)
	c.mu.Unlock()
	err = c.await(ctx, g)
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users == 0 && g.Ready() {
		c.drop(g)
	}
	return !isNew, err
}

// Start returns the grammar of a spec for an answer with some output, and compiles it in the
// background unless that has been done. It does not wait. The caller must Release the grammar. A
// cache whose Start is used must be closed.
func (c *Cache) Start(s constrain.Spec, output []int32) *Grammar {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, isNew := c.get(s)
	if g.dropped || (g.full.Load() || g.tables > g.fresh+freshBytes) && !g.waitedFor(output) {
		c.remove(c.grammars[s]) // of its tables there is nothing, or too much
		g, isNew = c.get(s)
	}
	if g.users++; g.users == 1 {
		c.using++
		c.idle -= g.idle
		g.idle = 0
	}
	switch {
	case !isNew:
	case c.over:
		g.finish(nil, ErrClosed)
	default:
		c.tasks.Go(func() { _ = c.await(context.Background(), g) })
	}
	return g
}

// get returns the grammar of a spec, which is new when the spec is. The caller holds mu.
func (c *Cache) get(s constrain.Spec) (g *Grammar, isNew bool) {
	if e := c.grammars[s]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*Grammar), false
	}
	g = &Grammar{cache: c, spec: s, done: make(chan struct{}), making: make(chan struct{}, 1)}
	e := c.recent.PushFront(g)
	c.grammars[s] = e
	c.text += len(s.Text)
	for c.recent.Len() > kept || c.text > keptText && c.recent.Len() > 1 {
		c.remove(c.recent.Back()) // requests that use it keep it
	}
	return g, true
}

// remove forgets a grammar. The caller holds mu.
func (c *Cache) remove(e *list.Element) {
	g := c.recent.Remove(e).(*Grammar)
	delete(c.grammars, g.spec)
	c.text -= len(g.spec.Text)
	if g.forgotten = true; g.users == 0 && g.Ready() {
		c.drop(g)
	}
}

// drop drops the tables of a grammar that no request uses. The caller holds mu.
func (c *Cache) drop(g *Grammar) {
	if g.dropped {
		return
	}
	g.dropped, g.compiled, g.found = true, nil, nil
	c.held -= g.held
	c.idle -= g.idle
	c.shed.add(c, g.held)
	g.held, g.idle = 0, 0
	c.free()
}

// markIdle counts the bytes of a grammar that no request uses as idle, or drops a grammar that will
// not be found again. The caller holds mu.
func (c *Cache) markIdle(g *Grammar) {
	if !g.Ready() || g.dropped {
		return
	}
	if g.forgotten || g.full.Load() {
		c.drop(g)
		return
	}
	g.idle = g.held
	c.idle += g.idle
	if c.idle > keptBytes && !c.sweeping && !c.over {
		c.sweeping = true
		c.tasks.Go(c.sweep)
	}
}

// sweep drops what is idle beyond keptBytes, after a while: a request that is preempted comes
// again.
func (c *Cache) sweep() {
	for {
		select {
		case <-time.After(sweepDelay):
		case <-c.closed:
			return
		}
		c.mu.Lock()
		c.trim(keptBytes)
		if c.sweeping = c.idle > keptBytes; !c.sweeping {
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// trim drops what has not been used for the longest time until so many bytes are idle. The caller
// holds mu.
func (c *Cache) trim(most int) {
	for e := c.recent.Back(); e != nil && c.idle > most; {
		g := e.Value.(*Grammar)
		e = e.Prev()
		if g.users == 0 && g.idle > 0 {
			c.drop(g)
		}
	}
}

// reserve waits until there is room to compile another grammar.
func (c *Cache) reserve(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		most := int(c.most.Load()) - (c.compiling+1)*compileBytes
		if c.held > most {
			c.trim(max(0, c.idle-(c.held-most)))
		}
		if c.held <= most {
			c.compiling++
			return nil
		}
		freed := c.freed
		c.mu.Unlock()
		var err error
		select {
		case <-freed:
		case <-c.closed:
			err = ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// await compiles the grammar, or waits until another caller has. A caller whose ctx ends leaves the
// work to the others.
func (c *Cache) await(ctx context.Context, g *Grammar) error {
	select {
	case <-g.done:
		return g.err
	case <-c.closed:
		g.finish(nil, ErrClosed)
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case g.making <- struct{}{}:
	}
	defer func() { <-g.making }()
	err := c.compileInTurn(ctx, g, c.brief, true)
	if err == nil && !g.Ready() {
		err = c.compileInTurn(ctx, g, c.long, false)
	}
	if err == ErrClosed {
		g.finish(nil, err)
	}
	if g.Ready() {
		return g.err
	}
	return err
}

// compileInTurn compiles a grammar once turns has a free slot, unless that has been done.
func (c *Cache) compileInTurn(ctx context.Context, g *Grammar, turns chan struct{},
	brief bool) error {
	if g.Ready() || brief && g.takesLong {
		return nil
	}
	select {
	case <-c.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case turns <- struct{}{}:
	}
	defer func() { <-turns }()
	if !brief {
		if err := c.reserve(ctx); err != nil {
			return err
		}
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.compiling--
			c.free()
		}()
	}
	return c.compile(ctx, g, brief)
}

// free wakes the callers of reserve. The caller holds mu.
func (c *Cache) free() {
	close(c.freed)
	c.freed = make(chan struct{})
}

// compile compiles a grammar, unless ctx ends before. A brief one that takes more than there is to
// do for it TakesLong.
func (c *Cache) compile(ctx context.Context, g *Grammar, brief bool) error {
	v, err := c.vocabulary()
	if err != nil {
		g.finish(nil, err)
		return err
	}
	g.words = v.Words()
	before := allocated()
	limits := c.limits
	var left atomic.Bool
	limits.Brief, limits.Stop = brief, left.Load
	release := context.AfterFunc(ctx, func() { left.Store(true) })
	compiled, err := compile(g.spec, v, limits)
	release()
	var wrong *constrain.Error
	g.takesLong = brief && errors.As(err, &wrong) && wrong.TooComplex
	c.mu.Lock()
	defer c.mu.Unlock()
	if !brief {
		c.shed.add(c, int(allocated()-before))
	}
	switch {
	case errors.Is(err, constrain.ErrStopped):
		return ctx.Err()
	case g.takesLong:
		return nil
	}
	if compiled != nil {
		g.held = compiled.Held()
		g.tables, g.fresh = g.held, g.held
		c.held += g.held
	}
	g.finish(compiled, err)
	if g.users == 0 {
		c.markIdle(g)
	}
	return nil
}

// compile turns a panic of the compiler, which would be a defect of it, into an error of the
// request that found it.
func compile(s constrain.Spec, v *constrain.Vocabulary,
	limits constrain.Limits) (g *constrain.Compiled, err error) {

	defer func() {
		if p := recover(); p != nil {
			g, err = nil, fmt.Errorf("compile a constraint of kind %v: panic: %v", s.Kind, p)
		}
	}()
	return constrain.Compile(s, v, limits)
}

// Close cancels the grammars that wait to be compiled, and waits for those being compiled. Compiled
// grammars stay usable.
func (c *Cache) Close() {
	c.mu.Lock()
	over := c.over
	c.over = true
	c.mu.Unlock()
	if !over {
		close(c.closed)
	}
	c.tasks.Wait()
}

// Vocabulary is what the compiler needs of a tokenizer: what its tokens stand for. Added tokens
// stand for themselves; ends are those that end an answer.
func Vocabulary(t *tokenizer.Tokenizer, ends ...int32) *constrain.Vocabulary {
	tokens := make([][]byte, t.VocabSize())
	special := map[string]int32{}
	for id := range tokens {
		id := int32(id)
		text, ok := t.Token(id)
		switch {
		case !ok:
		case t.IsAdded(id):
			special[text] = id
		default:
			tokens[id] = t.TokenBytes(id)
		}
	}
	return constrain.NewVocabulary(tokens, special, ends...)
}
