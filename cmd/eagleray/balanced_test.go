package main

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBalanced runs servers that have some of four engines each: metrics and ranks are by their
// numbers among all, and their number is not changed at one server.
func TestBalanced(t *testing.T) {
	t.Parallel()
	series := regexp.MustCompile(`eagleray:generation_tokens_total\{engine="(\d+)"`)
	rank := regexp.MustCompile(`"engine":(\d+)`)
	for _, c := range []struct {
		flags   string
		engines []string
	}{
		{"-dp 4 --data-parallel-rank 1", []string{"1"}},
		{"-dp 4 -dph --data-parallel-size-local 2 --data-parallel-start-rank 2",
			[]string{"2", "3"}},
	} {
		_, url := startServer(t, append(strings.Fields(c.flags), "--enable-elastic-ep")...)
		code, answer := posted(t, url+"/v1/completions", drawn)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", c.flags, code, answer)
		}
		if got := choices(t, answer); got != onePiece(t) {
			t.Errorf("%s: %s", c.flags, got)
		}
		for path, engine := range map[string]*regexp.Regexp{"/metrics": series,
			"/debug/ranks": rank} {
			var engines []string
			for _, m := range engine.FindAllStringSubmatch(body(t, url+path), -1) {
				engines = append(engines, m[1])
			}
			if !slices.Equal(engines, c.engines) {
				t.Errorf("%s: %s of engines %v, want %v", c.flags, path, engines, c.engines)
			}
		}
		code, answer = posted(t, url+"/scale_elastic?dp=2", "")
		if code != http.StatusBadRequest && code != http.StatusConflict ||
			!strings.Contains(answer, "of --data-parallel-size 4 engines") {
			t.Errorf("%s: scaled: %d %s", c.flags, code, answer)
		}
	}
}

// body is the answer of GET.
func body(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
