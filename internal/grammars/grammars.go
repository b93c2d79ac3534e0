// Package grammars compiles the constraints of requests, each once, away from whoever asks for it,
// and keeps what it compiled for the requests that come later. The driver asks it whether a
// constraint can be enforced at all, and has the answer kept only; the rank that samples takes its
// masks from it. Both compile the same text, with the same budget, to the same grammar: nothing else
// crosses between them. What grammars hold is bounded, each and all together, and goes back to the
// operating system when they are gone.
package grammars

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/constrain"
	"github.com/eagleray/eagleray/internal/tokenizer"
)

// kept is how many grammars stay when no request uses them, keptText how many bytes of text they
// have together, and keptBytes of tables, as constrain.Compiled counts them, after sweepDelay.
const (
	kept       = 256
	keptText   = 16 << 20
	keptBytes  = 32 << 20
	sweepDelay = 10 * time.Second
)

// mostBytes is how many bytes the tables of all grammars have together, those in use included, and
// compileBytes how many one that is being compiled may come to.
const (
	mostBytes    = 512 << 20
	compileBytes = 64 << 20
)

// mostAtOnce is how many compile at a time at most: each has memory.
const mostAtOnce = 4

// quick is how many operations a mask may take at once: some milliseconds, however they fall out.
const quick = 4000

// ErrClosed is why a grammar has not been compiled that was asked for when the cache was closed.
var ErrClosed = errors.New("grammars are closed")

// Cache compiles grammars over one vocabulary. Its methods may be called from several goroutines.
type Cache struct {
	vocabulary func() (*constrain.Vocabulary, error)
	// turn bounds how many compile at a time.
	turn   chan struct{}
	closed chan struct{}
	tasks  sync.WaitGroup

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

// New returns a cache that compiles so many grammars at a time, at least one and at most four. It
// calls vocabulary once, when the first grammar is compiled.
func New(vocabulary func() (*constrain.Vocabulary, error), atOnce int) *Cache {
	return &Cache{
		vocabulary: sync.OnceValues(vocabulary),
		turn:       make(chan struct{}, min(max(1, atOnce), mostAtOnce)),
		closed:     make(chan struct{}), grammars: map[constrain.Spec]*list.Element{},
		recent: list.New(), freed: make(chan struct{}),
	}
}

// Check says whether a constraint can be enforced: it compiles it, unless that has been done, or is
// being done by another caller: then the answer is kept already. An error is a *constrain.Error when
// the text is at fault. Nobody else using the grammar, its tables are given up.
func (c *Cache) Check(ctx context.Context, s constrain.Spec) (kept bool, err error) {
	c.mu.Lock()
	g, isNew := c.get(s)
	c.mu.Unlock()
	err = c.settle(ctx, g)
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users == 0 && g.Ready() {
		c.drop(g)
	}
	return !isNew, err
}

// Start returns the grammar of a spec, and has it compiled unless that has been done. It does not
// wait. The caller releases it when it does not use it any more. A cache whose Start is used is to be
// closed.
func (c *Cache) Start(s constrain.Spec) *Grammar {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, isNew := c.get(s)
	if g.dropped || g.full.Load() {
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
		c.tasks.Go(func() { _ = c.settle(context.Background(), g) })
	}
	return g
}

// get returns the grammar of a spec, which is new when the spec is. The caller holds mu.
func (c *Cache) get(s constrain.Spec) (g *Grammar, isNew bool) {
	if e := c.grammars[s]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*Grammar), false
	}
	g = &Grammar{cache: c, spec: s, done: make(chan struct{})}
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

// drop gives up the tables of a grammar that nobody uses. The caller holds mu.
func (c *Cache) drop(g *Grammar) {
	if g.dropped {
		return
	}
	g.dropped, g.compiled = true, nil
	c.held -= g.held
	c.idle -= g.idle
	c.shed.add(c, g.held)
	g.held, g.idle = 0, 0
	close(c.freed)
	c.freed = make(chan struct{})
}

// rest is done with a grammar that nobody uses any more, or yet. The caller holds mu.
func (c *Cache) rest(g *Grammar) {
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

// sweep drops what is idle beyond keptBytes, after a while: a request that is preempted comes again.
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
		most := mostBytes - (c.compiling+1)*compileBytes
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

// settle returns when the grammar has been compiled, here or by another caller.
func (c *Cache) settle(ctx context.Context, g *Grammar) error {
	select {
	case <-g.done:
		return g.err
	case <-c.closed:
		g.finish(nil, ErrClosed)
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case c.turn <- struct{}{}:
	}
	defer func() { <-c.turn }()
	if err := c.reserve(ctx); err != nil {
		if err == ErrClosed {
			g.finish(nil, err)
		}
		return err
	}
	if g.claimed.CompareAndSwap(false, true) {
		c.compile(g)
	}
	c.mu.Lock()
	c.compiling--
	close(c.freed)
	c.freed = make(chan struct{})
	c.mu.Unlock()
	<-g.done // who has claimed it has a turn
	return g.err
}

func (c *Cache) compile(g *Grammar) {
	v, err := c.vocabulary()
	if err != nil {
		g.finish(nil, err)
		return
	}
	g.words = v.Words()
	before, began := allocated(), time.Now()
	compiled, err := compile(g.spec, v)
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(began) > longCompile {
		c.shed.add(c, int(allocated()-before))
	}
	if compiled != nil {
		g.held = compiled.Held()
		c.held += g.held
	}
	g.finish(compiled, err)
	if g.users == 0 {
		c.rest(g)
	}
}

// compile turns a panic of the compiler, which would be a defect of it, into an error of the
// request that found it.
func compile(s constrain.Spec, v *constrain.Vocabulary) (g *constrain.Compiled, err error) {
	defer func() {
		if p := recover(); p != nil {
			g, err = nil, fmt.Errorf("compile a constraint of kind %v: panic: %v", s.Kind, p)
		}
	}()
	return constrain.Compile(s, v, constrain.Limits{})
}

// Close ends what waits to be compiled, and waits for what is being compiled. Grammars that exist
// go on.
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

// Grammar is one constraint, compiled or about to be.
type Grammar struct {
	cache *Cache
	spec  constrain.Spec
	// users, forgotten, dropped, held and idle are guarded by the cache's mu: how many use it, that the
	// cache does not find it any more, that its tables are gone, their bytes, and those that count as
	// idle.
	users              int
	forgotten, dropped bool
	held, idle         int
	// full says that its tables have come to what they may.
	full    atomic.Bool
	claimed atomic.Bool
	ended   sync.Once
	done    chan struct{}
	err     error // known when done is closed
	// mu guards the tables of compiled, which grow with use.
	mu       sync.Mutex
	compiled *constrain.Compiled
	counted  int // the bytes of its tables that the cache knows of
	words    int
	// busy says that hard holds mu: it runs what takes long.
	busy atomic.Bool
	// aside are the answers, by the sum of their tokens, of which a goroutine of its own has found out
	// what the next mask takes; false says that the limits were not enough for that.
	aside map[uint64]bool
}

// Release says that the caller of Start does not use the grammar any more.
func (g *Grammar) Release() {
	c := g.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users--; g.users == 0 {
		c.using--
		c.rest(g)
	}
}

// grown counts what the tables of a grammar have come to, and says whether they may stay so large:
// where all have too much together, those that have more than their share end. The caller holds the
// grammar's mu.
func (g *Grammar) grown(compiled *constrain.Compiled) bool {
	held, c := compiled.Held(), g.cache
	if held == g.counted {
		return !g.full.Load()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g.counted = held
	if g.dropped { // the request is gone that a mask has been made for
		return false
	}
	c.held += held - g.held
	g.held = held
	if compiled.Full() || c.held > mostBytes && held > mostBytes/max(1, c.using) {
		g.full.Store(true)
	}
	return !g.full.Load()
}

// finish says what came of compiling; only the first time counts.
func (g *Grammar) finish(compiled *constrain.Compiled, err error) {
	g.ended.Do(func() {
		g.compiled, g.err = compiled, err
		close(g.done)
	})
}

// Done is closed when the grammar has been compiled, or has been found impossible.
func (g *Grammar) Done() <-chan struct{} { return g.done }

// Ready says whether Done is closed.
func (g *Grammar) Ready() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// Matcher returns where an answer begins. The grammar must be ready.
func (g *Grammar) Matcher() (*Matcher, error) {
	if g.err != nil {
		return nil, g.err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return &Matcher{grammar: g, compiled: g.compiled, at: g.compiled.Matcher(), words: g.words}, nil
}

// Matcher is how far one answer has come. Matchers of one grammar may be used by several
// goroutines, each by one.
type Matcher struct {
	grammar  *Grammar
	compiled *constrain.Compiled
	at       *constrain.Matcher
	words    int
	// sum is that of the tokens so far.
	sum   uint64
	spent bool
}

// Accept goes on by a token, and returns false, going nowhere, when the grammar does not allow it, or
// when the answer is Spent.
func (m *Matcher) Accept(token int32) bool {
	g := m.grammar
	if !g.lock() {
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	if m.spent || !m.at.Accept(token) {
		m.spent = m.spent || m.at.Exhausted()
		return false
	}
	m.sum = (m.sum ^ uint64(uint32(token)+1)) * 0x9E3779B97F4A7C15
	m.spent = !g.grown(m.compiled)
	return !m.spent
}

// Spent says that the answer has come to its end because to go on takes more work or memory than it
// may.
func (m *Matcher) Spent() bool { return m.spent }

// maxAside is how many answers are remembered whose next mask has been found out.
const maxAside = 1024

// Mask sets the bits of the tokens that may come next and clears the others (see constrain's), and
// says whether the answer may end here. Where that takes long it returns false for ready, and has a
// goroutine find out what it takes, until when the grammar is not Usable: then it is to be asked
// again. The mask of an answer that is Spent is empty.
func (m *Matcher) Mask(mask []uint32) (complete, ready bool) {
	g := m.grammar
	if !g.lock() {
		return false, false
	}
	if m.spent {
		defer g.mu.Unlock()
		clear(mask)
		return false, true
	}
	operations := quick
	enough, found := g.aside[m.sum]
	if found {
		delete(g.aside, m.sum)
		if enough {
			operations = math.MaxInt
		}
	}
	if m.at.Try(mask, operations) || found {
		defer g.mu.Unlock()
		m.spent = m.at.Exhausted() || !g.grown(m.compiled)
		return m.at.Accepting(), true
	}
	g.busy.Store(true)
	g.cache.tasks.Go(func() {
		m.at.Mask(make([]uint32, m.words))
		if g.aside == nil || len(g.aside) >= maxAside {
			g.aside = map[uint64]bool{}
		}
		g.aside[m.sum] = !m.at.Exhausted() && g.grown(m.compiled)
		g.busy.Store(false)
		g.mu.Unlock()
	})
	return false, false
}

// lock takes the grammar, unless it is not usable. It spins: what others do with a grammar that is
// usable takes microseconds, less than to sleep and to be woken.
func (g *Grammar) lock() bool {
	for spins := 1; !g.mu.TryLock(); spins++ {
		if g.busy.Load() {
			return false
		}
		if spins%(1<<12) == 0 {
			runtime.Gosched()
		}
	}
	return true
}

// Usable says whether a mask can be had now: the grammar has been compiled, or found impossible, and
// no mask is being made that takes long.
func (g *Grammar) Usable() bool { return g.Ready() && !g.busy.Load() }

// Await waits until the grammar is usable, but not for longer than some time.
func (g *Grammar) Await(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-g.done:
	case <-timer.C:
	}
	for until := time.Now().Add(most); g.busy.Load() && time.Now().Before(until); {
		time.Sleep(most / 50)
	}
}

// Words is the least length of a mask.
func (m *Matcher) Words() int { return m.words }

// Vocabulary is what the compiler needs of a tokenizer: what its tokens stand for. Added tokens
// stand for themselves.
func Vocabulary(t *tokenizer.Tokenizer) *constrain.Vocabulary {
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
	return constrain.NewVocabulary(tokens, special)
}
