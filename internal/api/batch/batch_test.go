package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestLines(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"a":                      "a torn 1;",
		"a\n":                    "a 2;",
		"a\r\n\nb":               "a 3;| 4;|b torn 5;",
		strings.Repeat("x", 10):  strings.Repeat("x", 10) + " torn 10;",
		strings.Repeat("x", 11):  "too long torn 11;",
		"12345678901\nb\n":       "too long 12;|b 14;",
		"1234567890\r\nb\n":      "1234567890 12;|b 14;",
		strings.Repeat("y", 2e5): "too long torn 200000;",
	} {
		l, got := newLines(strings.NewReader(in), 10), []string{}
		for {
			text, err := l.next()
			if err == io.EOF {
				break
			}
			s := string(text)
			if err != nil {
				s = strings.TrimPrefix(err.Error(), "line is ")
			}
			if l.torn {
				s += " torn"
			}
			got = append(got, fmt.Sprintf("%s %d;", s, l.size))
		}
		if s := strings.Join(got, "|"); s != want {
			t.Errorf("%.20q: %q instead of %q", in, s, want)
		}
	}
}

func TestParseRow(t *testing.T) {
	for in, want := range map[string]string{
		`{"custom_id":"a","method":"POST","url":"/u","body":{"model":"m"}}`:       "",
		"\xef\xbb\xbf" + `{"custom_id":"a","method":"POST","url":"/u","body":{}}`: "",
		`{"custom_id":"a","method":"POST","url":"/u","body":{"stream":true}}`:     "'stream' must",
		`{"custom_id":"a","method":"POST","url":"/u","body":{"background":true}}`: "'background' must",
		`{"custom_id":"a","method":"POST","url":"/u","body":{"stream":false}}`:    "",
		`nonsense`:        CodeJSON,
		`[]`:              CodeJSON,
		`{"custom_id":1}`: CodeJSON,
		"{\"custom_id\":\"\xff\",\"method\":\"POST\",\"url\":\"/u\",\"body\":{}}": CodeJSON,
		`{"custom_id":"a"}{}`: CodeJSON,
		`{}`:                  CodeMissing + " custom_id",
		`{"custom_id":null,"method":"POST","url":"/u","body":{}}`: CodeMissing + " custom_id",
		`{"custom_id":"","method":"POST","url":"/u","body":{}}`:   CodeValue + " custom_id",
		`{"custom_id":"` + strings.Repeat("i", 513) +
			`","method":"POST","url":"/u","body":{}}`: CodeValue + " custom_id",
		`{"custom_id":"` + strings.Repeat("i", 512) + `","method":"POST","url":"/u","body":{}}`: "",
		`{"custom_id":"a","url":"/u","body":{}}`:                                                CodeMissing + " method",
		`{"custom_id":"a","method":"GET","url":"/u","body":{}}`:                                 CodeMethod + " method",
		`{"custom_id":"a","method":"POST","body":{}}`:                                           CodeMissing + " url",
		`{"custom_id":"a","method":"POST","url":"/u"}`:                                          CodeMissing + " body",
		`{"custom_id":"a","method":"POST","url":"/u","body":null}`:                              CodeValue + " body",
		`{"custom_id":"a","method":"POST","url":"/u","body":[1]}`:                               CodeValue + " body",
	} {
		r := parseRow([]byte(in), 7)
		got := ""
		switch {
		case r.Problem != nil:
			if got = r.Problem.Code; r.Problem.Param != nil {
				got += " " + *r.Problem.Param
			}
			if *r.Problem.Line != 7 || r.Problem.Message == "" ||
				strings.Contains(r.Problem.Message, "Go ") {
				t.Errorf("%s: %+v", in, r.Problem)
			}
		case r.refused != "":
			got = strings.Join(strings.Fields(r.refused)[:2], " ")
		}
		if got != want {
			t.Errorf("%.80s: %q instead of %q", in, got, want)
		}
	}
}

// input is n rows named r0, r1, …
func input(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"r%d","method":"POST","url":"/u","body":{"n":%d}}`+"\n", i, i)
	}
	return b.String()
}

// echo answers each row with its body, and counts them.
type echo struct{ asked atomic.Int64 }

func (e *echo) do(_ context.Context, r *Row) (Answer, error) {
	e.asked.Add(1)
	return Answer{Status: 200, RequestID: "x", Body: r.Body}, nil
}

func fileOf(in string, out string, do Do) *Offline {
	return &Offline{Input: strings.NewReader(in), Output: out, MaxLine: 1 << 20,
		Limiter: NewLimiter(8),
		Open:    opened(do)}
}

func opened(do Do) func(context.Context) (Do, error) {
	return func(context.Context) (Do, error) { return do, nil }
}

// outcomes are the lines of an output by their custom ids.
func outcomes(t *testing.T, path string) map[string]outcome {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]outcome{}
	for line := range bytes.Lines(b) {
		var o outcome
		if err := json.Unmarshal(line, &o); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		id := ""
		if o.CustomID != nil {
			id = *o.CustomID
		}
		if _, there := all[id]; there {
			t.Errorf("row %q is answered twice", id)
		}
		all[id] = o
	}
	return all
}

// TestResume cuts an output at many lengths, as a crash does, and goes on: every row is answered
// once, and those that were there are not asked again.
func TestResume(t *testing.T) {
	in, path := input(20), filepath.Join(t.TempDir(), "out.jsonl")
	if c, err := fileOf(in, path, new(echo).do).Run(t.Context()); err != nil ||
		c != (Counts{Total: 20, Completed: 20}) {
		t.Fatal(c, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut <= len(whole); cut += 7 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		kept, e := bytes.Count(whole[:cut], []byte("\n")), &echo{}
		c, err := fileOf(in, path, e.do).Run(t.Context())
		if err != nil || c != (Counts{Total: 20, Completed: 20, Before: kept}) ||
			int(e.asked.Load()) != 20-kept {
			t.Fatalf("cut at %d: %+v, %d asked, %v", cut, c, e.asked.Load(), err)
		}
		if n := len(outcomes(t, path)); n != 20 {
			t.Fatalf("cut at %d: %d rows are answered", cut, n)
		}
	}
}

// TestRowsFailAlone wants a line for each row, whatever is wrong with it.
func TestRowsFailAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	in := `{"custom_id":"good","method":"POST","url":"/u","body":{}}

nonsense
{"custom_id":"stream","method":"POST","url":"/u","body":{"stream":true}}
{"custom_id":"refused","method":"POST","url":"/refused","body":{}}
{"custom_id":"long","method":"POST","url":"/u","body":{"x":"` + strings.Repeat("x", 1<<20) + `"}}
{"custom_id":"<last>","method":"POST","url":"/u","body":{}}`
	f := fileOf(in, path, func(_ context.Context, r *Row) (Answer, error) {
		if r.URL == "/refused" {
			return Answer{Status: 400, Body: json.RawMessage(`{"error":{}}`)}, nil
		}
		return Answer{Status: 200, Body: json.RawMessage(`{}`)}, nil
	})
	// A row that cannot be read has no name: two lines have none here.
	c, err := f.Run(t.Context())
	if err != nil || c != (Counts{Total: 6, Completed: 2, Failed: 4}) {
		t.Fatalf("%+v, %v", c, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"custom_id":null,"response":null,"error":{"code":"invalid_json_line"`,
		`"custom_id":null,"response":null,"error":{"code":"line_too_long"`,
		`"custom_id":"stream","response":null,"error":{"code":"invalid_value"`,
		`"custom_id":"refused","response":{"status_code":400,"request_id":"","body":{"error":{}}},"error":null}`,
		`"custom_id":"<last>","response":{"status_code":200`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no line with %s in\n%s", want, b)
		}
	}
	f.Open, f.Input = nil, strings.NewReader(in) // nothing is asked
	if c, err := f.Run(t.Context()); err != nil || c.Before != 6 {
		t.Errorf("again: %+v, %v", c, err)
	}
}

// TestUnavailable wants rows to be asked until there is an answer, and the run to end with other
// errors.
func TestUnavailable(t *testing.T) {
	path, n := filepath.Join(t.TempDir(), "out.jsonl"), atomic.Int64{}
	c, err := fileOf(input(1), path, func(context.Context, *Row) (Answer, error) {
		if n.Add(1) < 3 {
			return Answer{}, fmt.Errorf("%w: full", ErrUnavailable)
		}
		return Answer{Status: 200, Body: json.RawMessage(`{}`)}, nil
	}).Run(t.Context())
	if err != nil || c.Completed != 1 || n.Load() != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	fault := errors.New("a fault")
	path += "2"
	_, err = fileOf(input(100), path, func(_ context.Context, r *Row) (Answer, error) {
		if r.Line == 50 {
			return Answer{}, fault
		}
		return Answer{Status: 200, Body: json.RawMessage(`{}`)}, nil
	}).Run(t.Context())
	if !errors.Is(err, fault) || !strings.Contains(err.Error(), "line 50") {
		t.Errorf("%v", err)
	}
	if n := len(outcomes(t, path)); n < 40 || n == 100 {
		t.Errorf("%d rows are answered", n)
	}
}

// TestCancel ends a run in which no row is answered.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan bool, 100)
	over := make(chan error)
	path := filepath.Join(t.TempDir(), "out.jsonl")
	go func() {
		_, err := fileOf(input(100), path, func(ctx context.Context, r *Row) (Answer, error) {
			asked <- true
			<-ctx.Done()
			return Answer{}, ctx.Err()
		}).Run(ctx)
		over <- err
	}()
	for range 8 { // the limiter is full
		<-asked
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(asked) > 0 {
		t.Errorf("%d rows more than the limiter admits were asked", len(asked))
	}
	if n := len(outcomes(t, path)); n != 0 {
		t.Errorf("%d rows are answered", n)
	}
}

// TestForeignOutput refuses outputs that are not those of the input, and changes nothing there.
func TestForeignOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	if _, err := fileOf(input(5), path, new(echo).do).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(ours), "\n")
	for name, c := range map[string]struct{ in, out, want string }{
		"a row changed": {strings.Replace(input(5), `"n":3`, `"n":9`, 1), string(ours),
			"row 4 of the output is the answer to another input"},
		"rows are gone": {input(3), string(ours), "2 rows are not in the input"},
		"none of ours":  {input(5), `{"id":"vllm-1","custom_id":"r1"}` + "\n", "line 1: its id"},
		"not JSON":      {input(5), "hello\n", "line 1 is not an answer"},
		"without an end": {input(5), strings.TrimSpace(input(1)),
			"line 1 is not the beginning of an answer"},
		"a word":         {input(5), first + "\nx", "line 2 is not the beginning of an answer"},
		"answered twice": {input(5), first + "\n" + first + "\n", "answered twice"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(c.out), 0o600); err != nil {
				t.Fatal(err)
			}
			e := &echo{}
			_, err := fileOf(c.in, path, e.do).Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), path) || e.asked.Load() > 0 {
				t.Errorf("%v, %d asked", err, e.asked.Load())
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != c.out {
				t.Errorf("the output is %q, %v", b, err)
			}
		})
	}
	s, err := openSpool(path+"2", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fileOf(input(1), path+"2", new(echo).do).Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "another process writes it") {
		t.Errorf("an output that is being written: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := fileOf(input(1), "/dev/null", new(echo).do).Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// many is an input of rows that is nowhere as a whole.
type many struct {
	rows, at int
	rest     []byte
}

func (m *many) Read(b []byte) (int, error) {
	if len(m.rest) == 0 {
		if m.at == m.rows {
			return 0, io.EOF
		}
		m.rest = fmt.Appendf(m.rest[:0],
			`{"custom_id":"r%d","method":"POST","url":"/u","body":{"x":"%s"}}`+"\n", m.at,
			strings.Repeat("x", 1500))
		m.at++
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

func (m *many) Seek(int64, int) (int64, error) {
	m.at, m.rest = 0, nil
	return 0, nil
}

// TestMemory runs 30 MB of rows in a few.
func TestMemory(t *testing.T) {
	var heap []uint64
	f := &Offline{Input: &many{rows: 20_000}, Output: filepath.Join(t.TempDir(), "out"),
		MaxLine: 1 << 20,
		Limiter: NewLimiter(512),
		Open: opened(func(context.Context, *Row) (Answer, error) {
			return Answer{Status: 200, Body: json.RawMessage(`{}`)}, nil
		}),
		Progress: func(c Counts) {
			if (c.Completed+c.Failed)%5000 == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				heap = append(heap, m.HeapAlloc>>10)
			}
		}}
	if c, err := f.Run(t.Context()); err != nil || c.Completed != 20_000 {
		t.Fatal(c, err)
	}
	if most := slices.Max(heap); len(heap) != 5 || most > 12<<10 {
		t.Errorf("%d KB of heap: %v", most, heap)
	}
}

// FuzzRow: any line is a row, or a problem that says where and why.
func FuzzRow(f *testing.F) {
	f.Add(`{"custom_id":"1","method":"POST","url":"/u","body":{"model":"m"}}`)
	f.Add(`{"custom_id":"","method":"POST","url":"/u","body":{}}`)
	f.Add(`{"custom_id":"1","method":"GET","url":"/u","body":{"stream":true}}`)
	f.Add("\xef\xbb\xbf{}")
	f.Add(`{"custom_id":1}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, line string) {
		r := parseRow([]byte(line), 7)
		switch p := r.Problem; {
		case r.Line != 7 || r.sum == 0:
			t.Fatalf("row %d, sum %d", r.Line, r.sum)
		case p != nil && (p.Code == "" || p.Message == "" || p.Line == nil || *p.Line != 7):
			t.Fatalf("%+v", p)
		case p == nil && (*r.CustomID == "" || r.URL == "" || !json.Valid(r.Body) ||
			r.Body[0] != '{'):
			t.Fatalf("%+v", r)
		}
		// What is said of it is a line of JSON, known again by its id.
		text, err := r.unanswered("code", "message").line()
		var o outcome
		if err != nil || json.Unmarshal(text, &o) != nil || bytes.Count(text, []byte("\n")) != 1 {
			t.Fatalf("%q, %v", text, err)
		}
		if number, sum, ok := parseID(o.ID); !ok || number != 7 || sum != r.sum {
			t.Fatalf("%s is of row %d", o.ID, number)
		}
	})
}
