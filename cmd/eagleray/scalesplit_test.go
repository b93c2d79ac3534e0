package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestScaleSplit changes the engines of a prefill server and of a decode server, and the layout of
// both, while requests go through the two: none is lost, and each answer is that of one server.
// Afterwards blocks are exchanged as before.
func TestScaleSplit(t *testing.T) {
	t.Parallel()
	token := tokenFile(t)
	_, one := startServer(t)
	transfer := func(role string) string {
		_, url := startServer(t, "--enable-elastic-ep", "--cluster-token-file", token,
			"--no-enable-prefix-caching", "--kv-transfer-config",
			`{"kv_connector":"EagleRayConnector","kv_role":"`+role+`"}`)
		return url
	}
	from, to := transfer("kv_producer"), transfer("kv_consumer")
	_, split := ready(t, command(t, "", "route", "--port", "0", "--prefill", from, "--decode", to))
	ask := func(url string, seed int) (string, error) {
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":24,"seed":%d,"temperature":1,"logprobs":3}`,
			strings.Repeat("package main opens a file. ", 8), seed)
		r, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			return "", fmt.Errorf("status %d: %s, %v", r.StatusCode, text, err)
		}
		return choices(t, string(text)), nil
	}
	var want []string
	for c := range 2 {
		text, err := ask(one, c)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, text)
	}
	underLoad(t, want, func(c int) (string, error) { return ask(split, c) }, func() {
		for _, query := range []string{"dp=2", "tp=2", "dp=1", "tp=1"} {
			for _, url := range []string{from, to} {
				if code, answer := posted(t, url+"/scale_elastic?"+query, ""); code != 200 {
					t.Errorf("%s: %d %s", query, code, answer)
				}
			}
		}
	})
	came := regexp.MustCompile(`kv_transfers_total\{direction="in".*outcome="done"\} ([0-9]+)`)
	count := func() string { return fmt.Sprint(came.FindStringSubmatch(scraped(t, to))) }
	before := count()
	if got, err := ask(split, 0); err != nil || got != want[0] {
		t.Errorf("after all: %v, %s", err, got)
	}
	if after := count(); after == before {
		t.Errorf("no blocks have come after all changes: %s", after)
	}
}
