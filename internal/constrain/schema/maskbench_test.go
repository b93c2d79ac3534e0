package schema

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/constrain/cfg"
	"github.com/eagleray/eagleray/internal/constrain/regex"
)

// TestMaskBench compiles the schemas of MaskBench (a directory of its JSON files) and looks at
// their instances. EAGLERAY_MASKBENCH_SPLIT is dev (four fifths by hash, the default), held or all.
func TestMaskBench(t *testing.T) {
	dir := os.Getenv("EAGLERAY_MASKBENCH")
	if dir == "" {
		t.Skip("EAGLERAY_MASKBENCH names no directory: MaskBench is not looked at")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	split := os.Getenv("EAGLERAY_MASKBENCH_SPLIT")
	var mu sync.Mutex
	reasons := map[string]int{}
	total, compiled, refusedValid, acceptedInvalid, badSchemas := 0, 0, 0, 0, 0
	valid, invalid := 0, 0
	var lines []string
	var times []time.Duration
	work := make(chan string)
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for f := range work {
				var doc struct {
					Schema json.RawMessage
					Tests  []struct {
						Valid bool
						Data  json.RawMessage
					}
				}
				raw, err := os.ReadFile(f)
				if err == nil {
					err = json.Unmarshal(raw, &doc)
				}
				if err != nil {
					t.Error(f, err)
					continue
				}
				began := time.Now()
				g := cfg.New(regex.NewBuilder(4_000_000), cfg.Greedy, 500_000)
				start, err := Compile(string(doc.Schema), g, Options{AnyOrder: os.Getenv("EAGLERAY_MASKBENCH_ORDER") == "any"}, Limits{})
				took := time.Since(began)
				mu.Lock()
				total++
				times = append(times, took)
				if err != nil {
					e := err.(*cfg.Error)
					reasons[e.Code+" "+e.Subject]++
					lines = append(lines, fmt.Sprintf("REFUSED %s %s %s: %v", e.Code, e.Subject, filepath.Base(f), err))
					mu.Unlock()
					continue
				}
				compiled++
				mu.Unlock()
				g.B.Refuel(1 << 40)
				bad := false
				for i, x := range doc.Tests {
					text := respaced(x.Data)
					got := recognises(g, start, text)
					mu.Lock()
					if x.Valid {
						valid++
					} else {
						invalid++
					}
					if got != x.Valid {
						bad = true
						if x.Valid {
							refusedValid++
						} else {
							acceptedInvalid++
						}
						lines = append(lines, fmt.Sprintf("WRONG want=%v %s #%d", x.Valid, filepath.Base(f), i))
					}
					mu.Unlock()
				}
				if bad {
					mu.Lock()
					badSchemas++
					mu.Unlock()
				}
			}
		}()
	}
	for _, f := range files {
		h := fnv.New32a()
		h.Write([]byte(filepath.Base(f)))
		held := h.Sum32()%5 == 0
		if split != "all" && held != (split == "held") {
			continue
		}
		work <- f
	}
	close(work)
	wg.Wait()
	slices.Sort(lines)
	if out := os.Getenv("EAGLERAY_MASKBENCH_OUT"); out != "" {
		os.WriteFile(out, []byte(fmt.Sprintln(lines)), 0o644)
		f, _ := os.Create(out)
		for _, l := range lines {
			fmt.Fprintln(f, l)
		}
		f.Close()
	}
	slices.Sort(times)
	t.Logf("%d schemas, %d compiled (%.4f); %d schemas with wrong verdicts: %d of %d valid refused, %d of %d invalid accepted; compile p50 %v p99 %v max %v",
		total, compiled, float64(compiled)/float64(total), badSchemas, refusedValid, valid, acceptedInvalid, invalid,
		times[len(times)/2], times[len(times)*99/100], times[len(times)-1])
	type kv struct {
		k string
		n int
	}
	var l []kv
	for k, n := range reasons {
		l = append(l, kv{k, n})
	}
	slices.SortFunc(l, func(a, b kv) int { return b.n - a.n })
	for _, x := range l {
		t.Logf("%5d %s", x.n, x.k)
	}
}

// respaced is JSON with one space after each comma and colon, as most writers put it.
func respaced(raw json.RawMessage) string {
	v, err := parse(string(raw), Limits{Depth: 10000, Values: 1 << 30})
	if err != nil {
		panic(err)
	}
	return string(spell(nil, v))
}

func spell(b []byte, v *value) []byte {
	switch v.kind {
	case kNull:
		return append(b, "null"...)
	case kTrue:
		return append(b, "true"...)
	case kFalse:
		return append(b, "false"...)
	case kNumber:
		return append(b, v.text...)
	case kString:
		return append(append(append(b, '"'), regex.JSONSpell(v.text)...), '"')
	case kArray:
		b = append(b, '[')
		for i, x := range v.list {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = spell(b, x)
		}
		return append(b, ']')
	}
	b = append(b, '{')
	for i, x := range v.list {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(append(b, '"'), regex.JSONSpell(v.names[i])...), `": `...)
		b = spell(b, x)
	}
	return append(b, '}')
}
