package constrain

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// many is f of each number below n, with something between every two.
func many(n int, between string, f func(i int) string) string {
	l := make([]string, n)
	for i := range l {
		l[i] = f(i)
	}
	return strings.Join(l, between)
}

// peak is the most that the heap has grown by while f ran, in bytes.
func peak(f func()) int {
	heap := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	runtime.GC()
	before, most := heap(), 0
	done := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, heap()-before)
			case <-done:
				tick.Stop()
				return
			}
		}
	})
	f()
	close(done)
	looking.Wait()
	return max(most, heap()-before)
}

// TestBounds compiles what was written to cost much, and goes on in it for as long as it may:
// nothing takes more memory than a constraint may have, counted or in truth, and everything ends.
// What is refused says by which bound.
func TestBounds(t *testing.T) {
	object := func(text string) Spec { return Spec{Kind: JSONSchema, Text: text} }
	anyOf := func(n int, f func(i int) string) Spec {
		return object(`{"anyOf":[` + many(n, ",", f) +
			`]}`)
	}
	doubling := func(alternative string) Spec {
		return Spec{Kind: Grammar, Text: "root ::= r0\n" + many(60, "", func(i int) string {
			return fmt.Sprintf("r%d ::= r%d r%d%s\n", i, i+1, i+1, alternative)
		}) + `r60 ::= "a"`}
	}
	tools := func(style string, n int, schema func(i int) string) Spec {
		return Spec{Kind: StructuralTag,
			Text: `{"format":{"type":"triggered_tags","triggers":["<f="],"tags":[` + many(n, ",",
				func(i int) string {
					return fmt.Sprintf(
						`{"begin":"<f=t%d>","content":{"type":"json_schema","style":%q,"json_schema":%s},"end":"</f>"}`, i, style, schema(i))
				}) + `]}}`}
	}
	const compiles = ""
	for _, c := range []struct {
		name    string
		spec    Spec
		refused string // compiles, or a part of the reason
		long    bool
	}{
		{"20,000 patterns", anyOf(20_000, func(i int) string {
			return fmt.Sprintf(`{"type":"string","pattern":"^a%d[0-9]+$"}`, i)
		}), compiles, false},
		{"20,000 patterns anywhere", anyOf(20_000, func(i int) string {
			return fmt.Sprintf(`{"type":"string","pattern":"a%d[0-9]+x"}`, i)
		}), compiles, true},
		{"3,000 constants, one of them", object(`{"oneOf":[` + many(3000, ",", func(i int) string {
			return fmt.Sprintf(`{"const":"v%d"}`, i)
		}) + `]}`), compiles, false},
		{"200 objects, one of them", object(`{"oneOf":[` + many(200, ",", func(i int) string {
			return fmt.Sprintf(`{"properties":{"a%d":{"pattern":"a%d[0-9]+x"}},"required":["a%d"]}`,
				i, i, i)
		}) + `]}`), "more than 4000000 operations", true},
		{"alternatives of alternatives", object(`{"allOf":[` + many(12, ",", func(int) string {
			return `{"anyOf":[` + many(20, ",", func(j int) string {
				return fmt.Sprintf(`{"properties":{"p":{"enum":[%d]}}}`, j)
			}) + `]}`
		}) + `]}`), "more than 256 alternatives", false},
		{"anything but a long array", object(`{"not":{"const":[` + many(20_000, ",",
			func(int) string { return "1" }) + `]}}`), "more than 4000000 operations", false},
		{"15,000 properties with patterns", object(`{"properties":{` + many(15_000, ",",
			func(i int) string {
				return fmt.Sprintf(`"p%d":{"type":"string","pattern":"^a%d[0-9]+$"}`, i, i)
			}) + `}}`), compiles, true},
		{"many properties, many alternatives", object(`{"properties":{` + many(12_000, ",",
			func(i int) string {
				return fmt.Sprintf(`"p%d":{"type":"string"}`, i)
			}) + `},"anyOf":[` + many(250, ",",
			func(i int) string { return fmt.Sprintf(`{"required":["p%d"]}`, i) }) + `]}`),
			"more than 64 MiB of memory", false},
		{"a pattern of options", object(`{"type":"string","pattern":"` +
			strings.Repeat("(ab?c*|[d-z]{2,9})?", 50_000) + `"}`), compiles, true},
		{"counts of counts", object(
			`{"type":"string","pattern":"^((((a{1,99}b?){1,99}c?){1,99}d?){1,99}e?){1,99}$","minLength":400,"maxLength":5000}`), "more than 1048576 operations", false},
		{"a hundred tools", tools("json", 100, func(i int) string {
			return `{"oneOf":[` + many(60, ",", func(j int) string {
				return fmt.Sprintf(`{"properties":{"a%d":{"const":%d}},"required":["a%d"]}`, j, i,
					j)
			}) + `]}`
		}), "more than 4000000 operations", true},
		{"a tool of many definitions", tools("qwen_xml", 1, func(int) string {
			return `{"$defs":{` + many(3000, ",", func(j int) string {
				return fmt.Sprintf(`"d%d":{"type":"object","properties":{"a":{"type":"integer"}}}`,
					j)
			}) + `},"properties":{` + many(3000, ",", func(j int) string {
				return fmt.Sprintf(`"p%d":{"$ref":"#/$defs/d%d"}`, j, j)
			}) + `}}`
		}), compiles, true},
		{"one long text", object(`{"enum":["` + strings.Repeat("x", 1_000_000) + `"]}`),
			"more than 1048576 operations", false},
		{"thousands of triggers", Spec{Kind: StructuralTag,
			Text: `{"format":{"type":"triggered_tags","triggers":[` + many(8000, ",",
				func(i int) string { return fmt.Sprintf(`"a%xz"`, i) }) + `],"tags":[` +
				many(8000, ",", func(i int) string {
					return fmt.Sprintf(`{"begin":"a%xz","content":{"type":"any_text"},"end":"q"}`, i)
				}) + `]}}`}, "more than 1048576 operations", false},
		{"doubling", doubling(""), compiles, false},
		{"doubling or a letter", doubling(` | "a"`), compiles, false},
		{"doubling or nothing", doubling(` | ""`), compiles, true},
		{"doubling with loops", doubling(` | "a" r0 | [a-c] | ""`), compiles, false},
		{"any number of ways", Spec{Kind: Grammar,
			Text: `root ::= root root root | root root | "a" | "b"`}, compiles, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long && testing.Short() {
				t.Skip("takes a second")
			}
			v := small()
			var held int
			most := peak(func() {
				compiled, err := Compile(c.spec, v, Limits{})
				var e *Error
				if c.refused != compiles {
					if !errors.As(err, &e) || !e.TooComplex || !strings.Contains(e.Reason,
						c.refused) {
						t.Errorf("%v instead of %q", err, c.refused)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				tokens, spent := walk(compiled, v, 100)
				held = compiled.Held()
				t.Logf("%d tokens, out of work: %v", tokens, spent)
				runtime.KeepAlive(compiled)
			})
			t.Logf("%d KiB counted, %d KiB at most", held>>10, most>>10)
			if limits := (Limits{}).filled(); held > limits.Bytes+limits.Bytes/64 ||
				most > 256<<20 {
				t.Errorf("%d MiB counted, %d MiB at most", held>>20, most>>20)
			}
		})
	}
}

// walk goes on by some token of the mask, for so many of them, and says how many it found and
// whether the limits ended it.
func walk(c *Compiled, v *Vocabulary, most int) (tokens int, spent bool) {
	m := c.Matcher()
	mask := make([]uint32, v.Words())
	for ; tokens < most; tokens++ {
		m.Mask(mask)
		n, id := count(mask)
		if n == 0 || !m.Accept(id) {
			break
		}
	}
	return tokens, m.Exhausted()
}

// TestHeldIsTrue compares what is counted for tables that have grown with what the heap has more.
func TestHeldIsTrue(t *testing.T) {
	v := small()
	for name, text := range map[string]string{
		"properties": `{"properties":{` + many(6000, ",", func(i int) string {
			return fmt.Sprintf(`"p%d":{"type":"string","pattern":"^a%d[0-9]+$"}`, i, i)
		}) + `}}`,
		"derivatives": `{"type":"string","pattern":"a[0-9]{3}(b.{0,9}c|.*d.{7}e)","maxLength":90,"not":{"pattern":"x.{5}y"}}`,
		"multiples":   `{"type":"integer","multipleOf":9973}`,
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c, err := Compile(Spec{Kind: JSONSchema, Text: text}, v, Limits{})
		if err != nil {
			t.Fatal(name, err)
		}
		for i := range 200 {
			m := c.Matcher()
			for _, b := range fmt.Sprintf("\"a%db%d", i*37, i) {
				m.Mask(make([]uint32, v.Words()))
				if !m.Accept(id(v, byte(b))) {
					break
				}
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		truth, counted := int(after.HeapAlloc)-int(before.HeapAlloc), c.Held()
		t.Logf("%s: %d KiB counted, %d KiB in truth", name, counted>>10, truth>>10)
		if truth > counted*3/2+1<<20 {
			t.Errorf("%s: %d KiB counted, %d KiB in truth", name, counted>>10, truth>>10)
		}
		runtime.KeepAlive(c)
	}
}

// id is the token of one byte.
func id(v *Vocabulary, b byte) int32 {
	for id, t := range v.tokens {
		if len(t) == 1 && t[0] == b {
			return int32(id)
		}
	}
	return -1
}

// TestAnswerIsBounded goes on in a grammar that can be read in more ways with every token: an
// answer comes to its end after as many tokens each time, and costs others nothing.
func TestAnswerIsBounded(t *testing.T) {
	v := small()
	limits := Limits{Answer: 200_000, Token: 1000}
	spec := Spec{Kind: Grammar, Text: `root ::= root root | "a"`}
	first := 0
	for range 2 {
		c, err := Compile(spec, v, limits)
		if err != nil {
			t.Fatal(err)
		}
		beside := c.Matcher()
		n, spent := walk(c, v, 10_000)
		if !spent || first != 0 && n != first {
			t.Fatalf("%d tokens, then %d: %v", first, n, spent)
		}
		first = n
		mask := make([]uint32, v.Words())
		if beside.Mask(mask); beside.Exhausted() {
			t.Error("another answer is out of work, too")
		}
	}
	t.Logf("%d tokens", first)
}
