package schema_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// verdicts counts what became of a set of schemas and their instances.
type verdicts struct {
	mu                       sync.Mutex
	schemas, compiled, wrong int
	valid, refused           int
	invalid, accepted        int
	reasons                  map[string]int
	times                    []time.Duration
	slowest                  string
	lines                    []string
}

// instance is a document, as the writers of MaskBench had it.
type benchFile struct {
	Schema json.RawMessage
	Tests  []struct {
		Valid bool
		Data  json.RawMessage
	}
}

// file compiles the schema of one file of MaskBench and looks at its instances.
func (v *verdicts) file(path string, vocabulary *constrain.Vocabulary, anyOrder bool) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var doc benchFile
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, doc.Schema); err != nil {
		return err
	}
	began := time.Now()
	c, err := constrain.Compile(constrain.Spec{Kind: constrain.JSONSchema, Text: compact.String(),
		AnyOrder: anyOrder}, vocabulary, constrain.Limits{})
	took := time.Since(began)
	name := filepath.Base(path)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.schemas++
	if len(v.times) == 0 || took > slices.Max(v.times) {
		v.slowest = name
	}
	v.times = append(v.times, took)
	var e *constrain.Error
	if errors.As(err, &e) {
		v.reasons[e.Code+" "+e.Subject]++
		v.lines = append(v.lines, fmt.Sprintf("refused %s %s %s: %v", e.Code, e.Subject, name, err))
		return nil
	}
	v.compiled++
	v.mu.Unlock()
	var wrong []string
	valid, refused, accepted := 0, 0, 0
	for i, x := range doc.Tests {
		if x.Valid {
			valid++
		}
		if got := matches(c, string(respaced(nil, x.Data))); got != x.Valid {
			wrong = append(wrong, fmt.Sprintf("wrong: valid is %v: %s %d", x.Valid, name, i))
			if got {
				accepted++
			} else {
				refused++
			}
		}
	}
	v.mu.Lock()
	v.valid, v.invalid = v.valid+valid, v.invalid+len(doc.Tests)-valid
	v.refused, v.accepted = v.refused+refused, v.accepted+accepted
	v.lines = append(v.lines, wrong...)
	if len(wrong) > 0 {
		v.wrong++
	}
	return nil
}

// TestMaskBench compiles the schemas of MaskBench and looks at their instances: EAGLERAY_MASKBENCH
// names its folder data. EAGLERAY_MASKBENCH_SPLIT is dev (four fifths by hash, the default), held
// or all, EAGLERAY_MASKBENCH_ORDER any or schema. EAGLERAY_MASKBENCH_OUT is a file for the list of
// what is refused or wrong.
func TestMaskBench(t *testing.T) {
	dir := os.Getenv("EAGLERAY_MASKBENCH")
	if dir == "" {
		t.Skip("EAGLERAY_MASKBENCH names no folder: MaskBench is not looked at")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	v := &verdicts{reasons: map[string]int{}}
	vocabulary := byteVocabulary()
	work := make(chan string)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for f := range work {
				if err := v.file(f, vocabulary,
					os.Getenv("EAGLERAY_MASKBENCH_ORDER") == "any"); err != nil {
					t.Errorf("%s: %v", f, err)
				}
			}
		})
	}
	split := cmp.Or(os.Getenv("EAGLERAY_MASKBENCH_SPLIT"), "dev")
	for _, f := range files {
		h := fnv.New32a()
		h.Write([]byte(filepath.Base(f)))
		if held := h.Sum32()%5 == 0; split == "all" || held == (split == "held") {
			work <- f
		}
	}
	close(work)
	workers.Wait()
	slices.Sort(v.lines)
	if out := os.Getenv("EAGLERAY_MASKBENCH_OUT"); out != "" {
		var b bytes.Buffer
		for _, l := range v.lines {
			fmt.Fprintln(&b, l)
		}
		if err := os.WriteFile(out, b.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(v.times)
	at := func(p int) time.Duration { return v.times[min(len(v.times)*p/100, len(v.times)-1)] }
	t.Logf("%d schemas, %d compiled: %.4f; p50 %v, p99 %v, most %v (%s)", v.schemas, v.compiled,
		float64(v.compiled)/float64(v.schemas), at(50), at(99), at(100), v.slowest)
	t.Logf("%d with a wrong verdict: %d of %d valid instances refused, %d of %d invalid accepted",
		v.wrong, v.refused, v.valid, v.accepted, v.invalid)
	for _, r := range slices.SortedFunc(maps.Keys(v.reasons), func(a, b string) int {
		return v.reasons[b] - v.reasons[a]
	}) {
		t.Logf("%5d %s", v.reasons[r], r)
	}
	if v.accepted > 0 {
		t.Error("invalid instances are accepted")
	}
}
