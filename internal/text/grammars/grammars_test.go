package grammars

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

func vocabulary() (*constrain.Vocabulary, error) {
	tokens := make([][]byte, 256)
	for i := range tokens {
		tokens[i] = []byte{byte(i)}
	}
	return constrain.NewVocabulary(tokens, nil), nil
}

func regex(text string) constrain.Spec {
	return constrain.Spec{Kind: constrain.Regex, Text: text}
}

// TestShared asks for the same and for other constraints from many goroutines: each is compiled
// once, and matchers of one grammar are used at the same time.
func TestShared(t *testing.T) {
	var loads atomic.Int32
	c := New(func() (*constrain.Vocabulary, error) {
		loads.Add(1)
		return vocabulary()
	}, 2)
	defer c.Close()
	var asking sync.WaitGroup
	for i := range 40 {
		asking.Go(func() {
			spec := regex(fmt.Sprintf("(ab){%d}c", 5+i%4))
			if _, err := c.Check(t.Context(), spec); err != nil {
				t.Error(err)
				return
			}
			g := c.Start(spec, nil)
			<-g.Done()
			if kept, err := c.Check(t.Context(), spec); !kept || err != nil {
				t.Errorf("%v is compiled again: %v", spec, err)
			}
			m, err := g.Matcher()
			if err != nil {
				t.Error(err)
				return
			}
			mask := make([]uint32, m.Words())
			var last []int32
			for n := range 2 * (5 + i%4) {
				want := int32("ab"[n%2])
				if s, done := m.Next(last, mask); done || s != Ready ||
					mask[want>>5] != 1<<(want&31) {
					t.Errorf("%v after %d: %v, complete %v, mask %x", spec, n, s, done, mask)
					return
				}
				last = []int32{want}
			}
			if s, done := m.Next([]int32{last[0], 'c'}, mask); s != Ready || !done {
				t.Errorf("%v does not end after c: %v", spec, s)
			}
			if s, _ := m.Next([]int32{'x'}, mask); s != Lost {
				t.Errorf("%v goes on with x: %v", spec, s)
			}
			g.Release(m)
		})
	}
	asking.Wait()
	if n := loads.Load(); n != 1 {
		t.Errorf("the vocabulary was loaded %d times", n)
	}
	if len(c.grammars) != 4 {
		t.Errorf("%d grammars of 4", len(c.grammars))
	}
}

// TestForgets keeps a bounded number of grammars, the latest ones, and those in use go on.
func TestForgets(t *testing.T) {
	c := New(vocabulary, 1)
	defer c.Close()
	first := c.Start(regex("first"), nil)
	for i := range kept + 10 {
		if _, err := c.Check(t.Context(), regex(fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.grammars) != kept || c.recent.Len() != kept || c.grammars[regex("first")] != nil {
		t.Errorf("%d grammars, %d in order", len(c.grammars), c.recent.Len())
	}
	<-first.Done()
	m, err := first.Matcher()
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := m.Next([]int32{'f'}, make([]uint32, m.Words())); s != Ready {
		t.Errorf("a forgotten grammar: %v", s)
	}
}

// TestLeft: who gives up ends the compiling, and the next one that asks has it compiled anew.
func TestLeft(t *testing.T) {
	c := New(vocabulary, 1)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	load := c.vocabulary
	brief := true
	c.vocabulary = func() (*constrain.Vocabulary, error) {
		if !brief { // the second time is the long one
			cancel()
		}
		brief = false
		return load()
	}
	spec := constrain.Spec{Kind: constrain.JSONSchema,
		Text: `{"const":"` + strings.Repeat("x", 300_000) + `"}`}
	if _, err := c.Check(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if kept, err := c.Check(t.Context(), spec); !kept || err != nil {
		t.Errorf("known: %v, error %v", kept, err)
	}
}

// TestErrors: what cannot be compiled says so to each who asks, who gives up does not wait, and a
// cache that is closed compiles nothing more.
func TestErrors(t *testing.T) {
	c := New(vocabulary, 1)
	var wrong *constrain.Error
	for range 2 {
		if _, err := c.Check(t.Context(), regex("a(")); !errors.As(err, &wrong) {
			t.Errorf("error %v", err)
		}
	}
	c.brief <- struct{}{} // another one compiles
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Check(ctx, regex("b")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	late := c.Start(regex("c"), nil)
	if late.Ready() {
		t.Error("it is compiled out of turn")
	}
	c.Close()
	<-late.Done()
	if _, err := late.Matcher(); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
	if g := c.Start(regex("d"), nil); !g.Ready() || !errors.Is(g.err, ErrClosed) {
		t.Errorf("error %v", g.err)
	}
	none := New(func() (*constrain.Vocabulary, error) { return nil, errors.New("no tokenizer") }, 1)
	defer none.Close()
	if _, err := none.Check(t.Context(), regex("a")); err == nil || err.Error() != "no tokenizer" {
		t.Errorf("error %v", err)
	}
}

// TestLongMask goes on behind a long text, as after a rank has been lost, in a grammar that takes
// much for it: that is done aside, and is there when the grammar is asked again.
func TestLongMask(t *testing.T) {
	c := New(vocabulary, 1)
	defer c.Close()
	a := &answer{cache: c, spec: constrain.Spec{Kind: constrain.Grammar,
		Text: `root ::= root root | [a-z]`}}
	for i := range 400 {
		a.text = append(a.text, int32('a'+i%26))
	}
	for range 3 {
		s, mask := a.next(t)
		if s != Ready || mask['z'>>5]>>('z'&31)&1 == 0 || mask['Z'>>5]>>('Z'&31)&1 == 1 {
			t.Fatalf("%v, mask %x", s, mask)
		}
		a.text = append(a.text, 'z')
	}
	if a.waits == 0 {
		t.Error("all was done at once")
	}
	a.end()
}
