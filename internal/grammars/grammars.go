// Package grammars compiles the constraints of requests, each once, away from whoever asks for it,
// and keeps what it compiled for the requests that come later. The driver asks it whether a
// constraint can be enforced at all; the rank that samples takes its masks from it. Both compile the
// same text, with the same budget, to the same grammar: nothing else crosses between them.
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
// have together.
const (
	kept     = 256
	keptText = 16 << 20
)

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
	over     bool
}

// New returns a cache that compiles so many grammars at a time, at least one. It calls vocabulary
// once, when the first grammar is compiled.
func New(vocabulary func() (*constrain.Vocabulary, error), atOnce int) *Cache {
	return &Cache{
		vocabulary: sync.OnceValues(vocabulary), turn: make(chan struct{}, max(1, atOnce)),
		closed: make(chan struct{}), grammars: map[constrain.Spec]*list.Element{}, recent: list.New(),
	}
}

// Check says whether a constraint can be enforced: it compiles it, unless that has been done, or is
// being done by another caller: then the grammar is kept already. An error is a *constrain.Error when
// the text is at fault.
func (c *Cache) Check(ctx context.Context, s constrain.Spec) (kept bool, err error) {
	g, isNew := c.get(s)
	return !isNew, c.settle(ctx, g)
}

// Start returns the grammar of a spec, and has it compiled unless that has been done. It does not
// wait. A cache whose Start is used is to be closed.
func (c *Cache) Start(s constrain.Spec) *Grammar {
	g, isNew := c.get(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !isNew:
	case c.over:
		g.finish(nil, ErrClosed)
	default:
		c.tasks.Go(func() { _ = c.settle(context.Background(), g) })
	}
	return g
}

// get returns the grammar of a spec, which is new when the spec is.
func (c *Cache) get(s constrain.Spec) (g *Grammar, isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.grammars[s]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*Grammar), false
	}
	g = &Grammar{spec: s, done: make(chan struct{}), hard: c.tasks.Go}
	c.grammars[s] = c.recent.PushFront(g)
	c.text += len(s.Text)
	for c.recent.Len() > kept || c.text > keptText && c.recent.Len() > 1 {
		old := c.recent.Remove(c.recent.Back()).(*Grammar) // requests that use it keep it
		delete(c.grammars, old.spec)
		c.text -= len(old.spec.Text)
	}
	return g, true
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
	if g.claimed.CompareAndSwap(false, true) {
		c.compile(g)
	}
	<-c.turn
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
	g.finish(compile(g.spec, v))
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
	spec    constrain.Spec
	claimed atomic.Bool
	ended   sync.Once
	done    chan struct{}
	err     error // known when done is closed
	// mu guards the tables of compiled, which grow with use.
	mu       sync.Mutex
	compiled *constrain.Compiled
	words    int
	// busy says that hard holds mu: it runs what takes long.
	busy atomic.Bool
	hard func(func())
	// prepared says that hard has found out what the next mask takes, spent that the limits were not
	// enough for that.
	prepared, spent bool
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
	return &Matcher{grammar: g, at: g.compiled.Matcher(), words: g.words}, nil
}

// Matcher is how far one answer has come. Matchers of one grammar may be used by several
// goroutines, each by one.
type Matcher struct {
	grammar *Grammar
	at      *constrain.Matcher
	words   int
}

// Accept goes on by a token, and returns false, going nowhere, when the grammar does not allow it.
func (m *Matcher) Accept(token int32) bool {
	if !m.grammar.lock() {
		m.grammar.mu.Lock()
	}
	defer m.grammar.mu.Unlock()
	return m.at.Accept(token)
}

// Mask sets the bits of the tokens that may come next and clears the others (see constrain's), and
// says whether the answer may end here. Where that takes long it returns false for ready, and has a
// goroutine find out what it takes, until when the grammar is not Usable: then it is to be asked
// again.
func (m *Matcher) Mask(mask []uint32) (complete, ready bool) {
	g := m.grammar
	if !g.lock() {
		return false, false
	}
	operations := quick
	if g.prepared {
		operations = math.MaxInt // what takes long has been found out
	}
	if m.at.Try(mask, operations) || g.prepared || g.spent {
		g.prepared = false
		defer g.mu.Unlock()
		return m.at.Accepting(), true
	}
	g.busy.Store(true)
	g.hard(func() {
		m.at.Mask(make([]uint32, m.words))
		g.spent = m.at.Exhausted()
		g.prepared = !g.spent
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
