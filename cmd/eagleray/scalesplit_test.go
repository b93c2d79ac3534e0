package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// TestScaleSplit changes the engines of a prefill server and of a decode server, and the layout of both,
// while requests go through the two: none is lost, and each answer is that of one server. Afterwards
// blocks are exchanged as before.
func TestScaleSplit(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("x7", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, one := startServer(t)
	transfer := func(role string) string {
		_, url := startServer(t, "--cluster-token-file", token, "--no-enable-prefix-caching",
			"--kv-transfer-config", `{"kv_connector":"EagleRayConnector","kv_role":"`+role+`"}`)
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
	const clients = 2
	var want [clients]string
	for c := range want {
		var err error
		if want[c], err = ask(one, c); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answers [clients]int
	for c := range clients {
		asking.Go(func() {
			for ; ctx.Err() == nil; answers[c]++ {
				if got, err := ask(split, c); err != nil || got != want[c] {
					t.Errorf("client %d: %v, %s\ninstead of\n%s", c, err, got, want[c])
					return
				}
			}
		})
	}
	for _, query := range []string{"dp=2", "tp=2", "dp=1", "tp=1"} {
		for _, url := range []string{from, to} {
			if code, answer := posted(t, url+"/scale_elastic?"+query, ""); code != 200 {
				t.Errorf("%s: %d %s", query, code, answer)
			}
		}
	}
	stop()
	asking.Wait()
	came := regexp.MustCompile(`kv_transfers_total\{direction="in".*outcome="done"\} ([0-9]+)`)
	count := func() string {
		r, err := http.Get(to + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(came.FindSubmatch(text))
	}
	before := count()
	if got, err := ask(split, 0); err != nil || got != want[0] {
		t.Errorf("after all: %v, %s", err, got)
	}
	if after := count(); after == before {
		t.Errorf("no blocks have come after all changes: %s", after)
	}
	t.Logf("answers of each client %v, 0 lost, 0 different", answers)
}
