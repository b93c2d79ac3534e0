package grammars

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// long is a schema that takes a while to compile, refused or not, and is no other's.
func long(i, alternatives int) constrain.Spec {
	var b strings.Builder
	for j := range alternatives {
		if j > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"string","pattern":"^a%d_%d[0-9]+$"}`, i, j)
	}
	return constrain.Spec{Kind: constrain.JSONSchema, Text: `{"anyOf":[` + b.String() + `]}`}
}

// TestLongOnesWait: while those that take long to compile have their turns, others are compiled at
// once; who gives up leaves the queue, and leaves it to those who ask for the same.
func TestLongOnesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(vocabulary, 2)
		defer c.Close()
		for range cap(c.long) { // others compile
			c.long <- struct{}{}
		}
		gone, leave := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			if _, err := c.Check(gone, long(0, 3000)); !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up: %v", err)
			}
		})
		for i := range 8 {
			asking.Go(func() {
				if _, err := c.Check(t.Context(), long(i%2, 3000)); err != nil {
					t.Errorf("who waited: %v", err)
				}
			})
		}
		synctest.Wait()
		if len(c.brief) != 0 {
			t.Errorf("%d turns are taken by those that wait", len(c.brief))
		}
		if _, err := c.Check(t.Context(), regex("a+")); err != nil {
			t.Error(err)
		}
		leave()
		synctest.Wait()
		for range cap(c.long) {
			<-c.long
		}
		asking.Wait()
		if c.held != 0 || c.compiling != 0 || len(c.long)+len(c.brief) != 0 {
			t.Errorf("%d bytes held, %d compile, %d and %d turns taken", c.held, c.compiling,
				len(c.brief), len(c.long))
		}
	})
}

// TestRoom: what takes long is compiled when there is room for it, and grammars in no use make
// some. With less memory there is less of it.
func TestRoom(t *testing.T) {
	for limit, most := range map[int64]int{0: mostBytes, 1: leastBytes, 200 << 20: 200 << 20,
		1 << 40: mostBytes} {
		testRoom(t, limit, most)
	}
}

func testRoom(t *testing.T, limit int64, most int) {
	synctest.Test(t, func(t *testing.T) {
		c := New(vocabulary, 1)
		defer c.Close()
		if limit > 0 {
			c.Limit(limit)
		}
		idle, used := c.Start(regex("[a-z]{3,9}x"), nil), c.Start(regex("b"), nil)
		<-idle.Done()
		<-used.Done()
		c.mu.Lock()
		used.held += most - compileBytes - c.held + 1 // of its tables
		c.held = most - compileBytes + 1
		c.mu.Unlock()
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := c.Check(t.Context(), long(0, 3000)); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if c.compiling != 0 {
			t.Error("it compiles without room")
		}
		idle.Release(nil) // which makes room when it is asked for
		used.Release(nil)
		c.mu.Lock()
		c.trim(0)
		c.mu.Unlock()
		waiting.Wait()
		if c.held != 0 || !used.dropped {
			t.Errorf("%d bytes held", c.held)
		}
	})
}

// TestMemoryReturned: after a large schema, refused or not, nothing of it is kept, and what it took
// goes back to the operating system.
func TestMemoryReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(vocabulary, 1)
		defer c.Close()
		if _, err := c.Check(t.Context(), regex("a")); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		spec := long(0, 20_000)
		refused := long(0, 20_000)
		refused.Text = `{"not":` + refused.Text +
			`,"type":"string","pattern":"(a.{9}b){9}c","minLength":2000}`
		for _, s := range []constrain.Spec{spec, refused} {
			_, err := c.Check(t.Context(), s)
			var wrong *constrain.Error
			if err != nil && (!errors.As(err, &wrong) || !wrong.TooComplex) {
				t.Error(err)
			}
		}
		time.Sleep(2 * shedDelay)
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if c.held != 0 || after.NumForcedGC == before.NumForcedGC {
			t.Errorf("%d bytes held, memory was given back %d times", c.held,
				after.NumForcedGC-before.NumForcedGC)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if more := int(after.HeapAlloc) - int(before.HeapAlloc); more > 8<<20 {
			t.Errorf("%d KiB are kept", more>>10)
		}
	})
}

// TestFreshTables: when the tables have grown much, answers that begin have others, and those under
// way keep theirs.
func TestFreshTables(t *testing.T) {
	c := New(vocabulary, 1)
	defer c.Close()
	old := c.Start(regex("ab"), nil)
	<-old.Done()
	m, err := old.Matcher()
	if err != nil {
		t.Fatal(err)
	}
	if again := c.Start(regex("ab"), nil); again != old {
		t.Error("small tables are not shared")
	}
	c.mu.Lock()
	old.tables += freshBytes + 1
	c.mu.Unlock()
	fresh := c.Start(regex("ab"), nil)
	if fresh == old {
		t.Error("large tables are shared")
	}
	if s, _ := m.Next([]int32{'a'}, make([]uint32, m.Words())); s != Ready {
		t.Errorf("the answer under way: %v", s)
	}
	<-fresh.Done()
	fresh.Release(nil)
	old.Release(m)
	old.Release(nil)
	if !old.dropped || c.using != 0 || c.held != fresh.held {
		t.Errorf("dropped %v, %d in use, %d bytes held", old.dropped, c.using, c.held)
	}
}

// TestFull: an answer whose next mask fills the tables waits for it and then ends, instead of
// beginning anew with fresh tables for ever, as do not others; one that waits for a mask which
// leaves the tables large has it.
func TestFull(t *testing.T) {
	hard := constrain.Spec{Kind: constrain.Grammar, Text: `root ::= root root | [a-z]`}
	text := make([]int32, 300)
	for i := range text {
		text[i] = int32('a' + i%26)
	}
	for _, full := range []bool{false, true} {
		c := New(vocabulary, 1)
		defer c.Close()
		if full {
			c.limits.Bytes = 1 << 20
		}
		for _, beyond := range []bool{false, true, false} {
			a, want := &answer{cache: c, spec: hard}, Ready
			if beyond {
				a.text = text
				if full {
					want = Spent
				}
			}
			if s, _ := a.next(t); s != want || want == Spent && a.waits == 0 {
				t.Errorf("full %v, beyond %v: %v after %d waits", full, beyond, s, a.waits)
			}
			c.mu.Lock()
			a.g.tables = a.g.fresh + freshBytes + 1 // to the one who comes next
			c.mu.Unlock()
			a.end()
		}
	}
}

// TestSpent goes on in a grammar that can be read in more ways with every token. Each step is done
// at once or aside, the answer comes to its end though a new matcher goes on after every wait, and
// an answer of another grammar has its masks all the while.
func TestSpent(t *testing.T) {
	c := New(vocabulary, 1)
	defer c.Close()
	c.limits.Answer, c.limits.Token = 200_000, 500
	a := &answer{cache: c, spec: constrain.Spec{Kind: constrain.Grammar,
		Text: `root ::= root root root | root root | [a-z]`}}
	other := c.Start(regex("[ab]*"), nil)
	<-other.Done()
	beside, err := other.Matcher()
	if err != nil {
		t.Fatal(err)
	}
	var last []int32
	for {
		s, _ := a.next(t)
		if s == Spent {
			break
		}
		if s != Ready || len(a.text) > 5000 {
			t.Fatalf("after %d tokens: %v", len(a.text), s)
		}
		a.text = append(a.text, int32('a'+len(a.text)%26))
		if s, _ := beside.Next(last, make([]uint32, beside.Words())); s != Ready {
			t.Fatalf("the other answer: %v", s)
		}
		last = []int32{int32('a' + len(a.text)%2)}
	}
	t.Logf("%d tokens, %d steps aside", len(a.text), a.waits)
	if a.waits == 0 {
		t.Error("all was done at once")
	}
	short := &answer{cache: c, spec: a.spec, text: a.text[:3]}
	if s, _ := short.next(t); s != Ready {
		t.Errorf("a short answer of the same grammar: %v", s)
	}
	a.end()
	short.end()
	other.Release(beside)
	if c.using != 0 || c.held != c.idle {
		t.Errorf("%d grammars in use, %d bytes held, %d idle", c.using, c.held, c.idle)
	}
}

// answer asks for what comes next as the runner does: by a new matcher after every wait.
type answer struct {
	cache *Cache
	spec  constrain.Spec
	text  []int32
	g     *Grammar
	m     *Matcher
	done  int
	waits int
}

func (a *answer) end() {
	if a.g != nil {
		a.g.Release(a.m)
	}
	a.g, a.m, a.done = nil, nil, 0
}

func (a *answer) next(t *testing.T) (s State, mask []uint32) {
	t.Helper()
	for {
		if a.m == nil {
			a.g = a.cache.Start(a.spec, a.text)
			<-a.g.Done()
			var err error
			if a.m, err = a.g.Matcher(); err != nil {
				t.Fatal(err)
			}
		}
		mask = make([]uint32, a.m.Words())
		s, _ = a.m.Next(a.text[a.done:], mask)
		if a.done = len(a.text); s != Wait {
			return s, mask
		}
		g := a.g
		if a.end(); a.waits > 1000 {
			t.Fatal("a mask never comes")
		}
		a.waits++
		g.Await(50 * time.Millisecond)
	}
}
