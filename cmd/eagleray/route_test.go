package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestRoute asks a prefill server and two ranks of a decode server through route what one server is
// asked, choices and log-probabilities too, and wants the same; then again after the prefill server
// was killed.
func TestRoute(t *testing.T) {
	token := tokenFile(t)
	transfer := func(role string, args ...string) (*program, string) {
		return startServer(t, append(args, "--cluster-token-file", token, "--kv-transfer-config",
			`{"kv_connector":"EagleRayConnector","kv_role":"`+role+`"}`)...)
	}
	_, one := startServer(t)
	prefill, from := transfer("kv_producer")
	_, to := transfer("kv_consumer", "-tp", "2")
	trace := filepath.Join(t.TempDir(), "trace.json")
	_, url := ready(t, command(t, "", "route", "--port", "0", "--prefill", from, "--decode", to,
		"--trace", trace))
	ask := func(url, body string) (answer struct{ Choices, Error json.RawMessage }) {
		t.Helper()
		r, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil || answer.Choices == nil {
			t.Fatalf("%s: %v", text, err)
		}
		return answer
	}
	same := func(prompt string) {
		t.Helper()
		body := `{"prompt":"` + strings.Repeat(prompt, 12) +
			`","max_tokens":12,"seed":7,"temperature":1,"logprobs":3,"n":2}`
		if got, want := ask(url, body).Choices, ask(one, body).Choices; !bytes.Equal(got, want) {
			t.Errorf("%s\ninstead of\n%s", got, want)
		}
	}
	counts := func() string {
		t.Helper()
		var lines []string
		for line := range strings.Lines(scraped(t, to)) {
			if strings.Contains(line, `kv_transfers_total{direction="in"`) {
				lines = append(lines, line[strings.LastIndex(line, "outcome="):])
			}
		}
		return strings.Join(lines, "")
	}
	same("package main opens a file. ")
	if got, want := counts(), "outcome=\"done\"} 1\noutcome=\"lost\"} 0\n"; got != want {
		t.Errorf("transfers:\n%s", got)
	}
	if text, err := os.ReadFile(trace); err != nil || strings.Count(string(text),
		`"name":"prefill"`) != 1 {
		t.Errorf("the trace is %q, %v", text, err)
	}
	if err := prefill.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	same("func Open returns an error. ")
}

// TestRouteStreams kills the server that answers a stream: another one, with another layout, goes
// on with the very bytes. What is drawn has no seed: no third server would draw the same.
func TestRouteStreams(t *testing.T) {
	one, first := startServer(t)
	two, second := startServer(t, "-tp", "2")
	servers := map[string]*program{first: one, second: two}
	_, url := ready(t, command(t, "", "route", "--port", "0", "--decode", first, "--decode",
		second))
	const body = `{"messages":[{"role":"user","content":"What does os.Open return?"}],"max_tokens":400,
		"ignore_eos":true,"temperature":1,"n":2,"logprobs":true,"stream":true}`
	r, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	reader := bufio.NewReader(r.Body)
	started, err := reader.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	killed := ""
	for at, p := range servers {
		if killed == "" && loadOf(t, at) > 0 {
			killed = at
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rest, err := io.ReadAll(reader)
	if err != nil {
		t.Fatalf("killed %q: %v after %s", killed, err, rest)
	}
	text := started + string(rest)
	ids := map[string]bool{}
	var counts [2]int
	for line := range strings.Lines(text) {
		data, is := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !is {
			continue
		}
		var chunk struct {
			ID      string
			Choices []struct {
				Index    int
				Logprobs *struct{ Content []json.RawMessage }
			}
			Error json.RawMessage
		}
		if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil || chunk.Error != nil {
			t.Fatalf("%v in %s", err, data)
		}
		ids[chunk.ID] = true
		for _, c := range chunk.Choices {
			if c.Logprobs != nil {
				counts[c.Index] += len(c.Logprobs.Content)
			}
		}
	}
	if counts != [2]int{400, 400} || len(ids) != 1 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("killed %q: %v tokens of %d answers", killed, counts, len(ids))
	}
	t.Logf("killed %q after %d bytes of %d", killed, len(started), len(text))
}

// tokenFile is a file with a secret of servers.
func tokenFile(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(strings.Repeat("x7", 20)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// scraped are the metrics of a server.
func scraped(t *testing.T, url string) string {
	t.Helper()
	return body(t, url+"/metrics")
}

// loadOf is how many requests a server answers.
func loadOf(t *testing.T, url string) (n int) {
	t.Helper()
	r, err := http.Get(url + "/load")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var load struct {
		Server int `json:"server_load"`
	}
	if err := json.NewDecoder(r.Body).Decode(&load); err != nil {
		t.Fatal(err)
	}
	return load.Server
}

// TestRoutePlaces does so with places that share experts, two on each side: blocks of a prompt go
// from the place that computed it to the one that goes on.
func TestRoutePlaces(t *testing.T) {
	t.Parallel()
	token := tokenFile(t)
	_, one := startServer(t, mixture...)
	transfer := func(role string) string {
		_, url := startServer(t, append([]string{"-dp", "2", "-ep", "--cluster-token-file", token,
			"--kv-transfer-config", `{"kv_connector":"EagleRayConnector","kv_role":"` + role +
				`"}`}, mixture...)...)
		return url
	}
	from, to := transfer("kv_producer"), transfer("kv_consumer")
	_, url := ready(t, command(t, "", "route", "--port", "0", "--prefill", from, "--decode", to))
	const requests = 8
	body := func(i int) string {
		prompt := strings.Repeat(fmt.Sprintf("%d,5,9,2,", 10+i), 10)
		return fmt.Sprintf(`{"prompt":[%s7],"max_tokens":24,"temperature":0.9,"seed":%d,`+
			`"logprobs":3,"ignore_eos":true,"return_tokens_as_token_ids":true}`, prompt, i)
	}
	var got [requests]string
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { _, got[i] = posted(t, url+"/v1/completions", body(i)) })
	}
	wg.Wait()
	for i := range got {
		_, want := posted(t, one+"/v1/completions", body(i))
		if choices(t, got[i]) != choices(t, want) {
			t.Errorf("request %d: two servers answer\n%s\none\n%s", i, got[i], want)
		}
	}
	// Each place of either side had some of the requests, as they came together.
	came := regexp.MustCompile(`eagleray:kv_transfers_total\{(.*)outcome="done"(.*)\} ([0-9]+)`)
	for url, direction := range map[string]string{from: `"out"`, to: `"in"`} {
		var sum int
		for _, m := range came.FindAllStringSubmatch(scraped(t, url), -1) {
			if n, err := strconv.Atoi(m[3]); err == nil && strings.Contains(m[1]+m[2], direction) {
				sum += n
			}
		}
		if sum != requests {
			t.Errorf("%d transfers %s of %d requests: %s", sum, direction, requests,
				scraped(t, url))
		}
	}
}

// TestRouteConfig takes the flags of route from a file and the environment, as those of others are.
func TestRouteConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "route.yaml")
	if err := os.WriteFile(file, []byte("decode: [http://d, wrong]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ file, variable, want string }{
		{file, "", `--decode "wrong"`}, {"", "wrong too", `--decode "wrong too"`},
	} {
		t.Setenv("EAGLERAY_DECODE", x.variable)
		c := newRoute()
		c.SetArgs([]string{"--config", x.file})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}
