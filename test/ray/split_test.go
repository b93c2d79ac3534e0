package ray_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestSplitPlaces has one server compute prompts and another one go on from them, each with two
// places on Ray that share experts, one of them in an adopted placement group, behind route: with
// the answers of one process, also while and after places go and come back.
func TestSplitPlaces(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		model := []string{"../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init",
			"--served-model-name", "mixture"}
		token := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(token, []byte(strings.Repeat("x7", 20)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		transfer := func(role string, args ...string) *server {
			return s.serve(t, "", nil, slices.Concat([]string{"-dp", "2", "-ep",
				"--no-enable-prefix-caching", "--cluster-token-file", token,
				"--kv-transfer-config",
				`{"kv_connector":"EagleRayConnector","kv_role":"` + role + `"}`}, model, args)...)
		}
		id := s.group(t, "places", bundles(2))
		from := transfer("kv_producer", "--enable-elastic-ep")
		to := transfer("kv_consumer", "--ray-placement-group", id)
		alone := startProgram(t, program(t), nil, append([]string{"serve", "--port", "0"},
			model...)...)
		split := startProgram(t, program(t), nil, "route", "--port", "0", "--prefill", from.url(t),
			"--decode", to.url(t))
		const requests = 8
		var want [requests]string
		for i := range want {
			want[i] = mixtureAnswer(t, alone.url(t), i)
		}
		url, came := split.url(t), 0
		same := func(when string) {
			t.Helper()
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() {
					if got := mixtureAnswer(t, url, i); got != want[i] {
						t.Errorf("%s, request %d: two servers answer\n%s\none\n%s", when, i, got,
							want[i])
					}
				})
			}
			wg.Wait()
			before := came
			if came = transfers(t, to.url(t)); came != before+requests {
				t.Errorf("%s: %d transfers of %d requests", when, came-before, requests)
			}
		}
		same("two places")
		for _, n := range []string{"1", "2"} {
			read(t, func() (*http.Response, error) {
				r, err := http.Post(from.url(t)+"/scale_elastic?dp="+n, "", nil)
				if err == nil && r.StatusCode != http.StatusOK {
					t.Errorf("%s places: status %d", n, r.StatusCode)
				}
				return r, err
			})
			same("scaled to " + n)
		}
		for _, p := range []*server{split, alone, from, to} {
			p.signal(t, syscall.SIGTERM)
			if code := p.exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		}
		if state := s.find(t, id).State; state != "CREATED" {
			t.Errorf("the adopted group is %s", state)
		}
		s.clean(t)
	})
}

// transfers is how many prompts have come to a server, all its places together.
func transfers(t *testing.T, url string) int {
	t.Helper()
	metrics := read(t, func() (*http.Response, error) { return http.Get(url + "/metrics") })
	return total(t, metrics, "eagleray:kv_transfers_total", `outcome="done"`)
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
