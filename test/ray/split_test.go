package ray_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestSplitPlaces has one server compute prompts and another one go on from them, each with two
// places on Ray that share experts, behind route: with the answers of one process.
func TestSplitPlaces(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		model := []string{"../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init",
			"--served-model-name", "mixture"}
		token := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(token, []byte(strings.Repeat("x7", 20)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		transfer := func(role string) *server {
			return s.serve(t, "", nil, append([]string{"-dp", "2", "-ep", "--cluster-token-file",
				token, "--kv-transfer-config",
				`{"kv_connector":"EagleRayConnector","kv_role":"` + role + `"}`}, model...)...)
		}
		from, to := transfer("kv_producer"), transfer("kv_consumer")
		alone := startProgram(t, program(t), nil, append([]string{"serve", "--port", "0"},
			model...)...)
		split := startProgram(t, program(t), nil, "route", "--port", "0", "--prefill", from.url(t),
			"--decode", to.url(t))
		const requests = 8
		var got [requests]string
		var wg sync.WaitGroup
		url := split.url(t)
		for i := range got {
			wg.Go(func() { got[i] = mixtureAnswer(t, url, i) })
		}
		wg.Wait()
		for i := range got {
			if want := mixtureAnswer(t, alone.url(t), i); got[i] != want {
				t.Errorf("request %d: two servers answer\n%s\none\n%s", i, got[i], want)
			}
		}
		metrics := read(t, func() (*http.Response, error) {
			return http.Get(to.url(t) + "/metrics")
		})
		came := 0
		for line := range strings.Lines(metrics) {
			var n int
			if strings.HasPrefix(line, "eagleray:kv_transfers_total{") &&
				strings.Contains(line, `outcome="done"`) {
				if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n); err != nil {
					t.Error(err)
				}
			}
			came += n
		}
		if came != requests {
			t.Errorf("%d transfers of %d requests: %s", came, requests, metrics)
		}
		for _, p := range []*server{split, alone, from, to} {
			p.signal(t, syscall.SIGTERM)
			if code := p.exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		}
		s.clean(t)
	})
}

// mixtureAnswer is what a server answers to a prompt of several blocks: the tokens, which are
// drawn, and their log-probabilities.
func mixtureAnswer(t *testing.T, url string, i int) string {
	t.Helper()
	prompt := strings.Repeat(fmt.Sprintf("%d,5,9,2,", 10+i), 10)
	body := fmt.Sprintf(`{"prompt":[%s7],"max_tokens":24,"temperature":0.9,"seed":%d,`+
		`"logprobs":3,"ignore_eos":true,"return_tokens_as_token_ids":true}`, prompt, i)
	text := read(t, func() (*http.Response, error) {
		return http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
	})
	var answer struct{ Choices json.RawMessage }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Choices == nil {
		t.Errorf("%v: %s", err, text)
	}
	return string(answer.Choices)
}

// read is the body of a response.
func read(t *testing.T, ask func() (*http.Response, error)) string {
	t.Helper()
	r, err := ask()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}
