package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// The server as users have it: one process, then two ranks in processes of their own.
func TestServe(t *testing.T) {
	t.Parallel()
	answers := map[string]string{}
	for name, args := range map[string][]string{"uni": nil, "mp": {"-tp", "2"}} {
		t.Run(name, func(t *testing.T) {
			p, url := startServer(t, args...)
			var pids map[int]int
			if name == "mp" {
				pids = twoWorkers(t, p)
			}
			client := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"),
				option.WithMaxRetries(0))
			answers[name] = askChat(t, client) + askCompletion(t, client)
			benchServer(t, url)
			code, stdout, stderr := execute(t, "What does os.Open do?\n", "chat", "--url", url,
				"--max-tokens", "10")
			if code != 0 || strings.TrimSpace(stdout) == "" {
				t.Errorf("chat --url: exit code %d, printed %q, errors %q", code, stdout, stderr)
			}
			drains(t, p, url)
			workersEnd(t, pids)
		})
	}
	if answers["uni"] != answers["mp"] {
		t.Errorf("one rank answers %q, two %q", answers["uni"], answers["mp"])
	}
}

// askChat asks the same question with and without streaming.
func askChat(t *testing.T, client openai.Client) string {
	t.Helper()
	params := openai.ChatCompletionNewParams{Model: "go-std-tiny",
		MaxCompletionTokens: openai.Int(24), Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(
			"What does strings.Index do?")},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{}}
	whole, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		sum.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	want := whole.Choices[0].Message.Content
	if want == "" || sum.Choices[0].Message.Content != want ||
		sum.Usage.CompletionTokens != whole.Usage.CompletionTokens ||
		whole.Usage.CompletionTokens == 0 {
		t.Errorf("streamed %q with usage %+v, at once %q with %+v", sum.Choices[0].Message.Content,
			sum.Usage, want, whole.Usage)
	}
	return want
}

// askCompletion completes a prompt with and without streaming.
func askCompletion(t *testing.T, client openai.Client) string {
	t.Helper()
	params := openai.CompletionNewParams{Model: "go-std-tiny", MaxTokens: openai.Int(16),
		Temperature: openai.Float(0),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Package bytes " +
			"implements")}}
	whole, err := client.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	stream := client.Completions.NewStreaming(t.Context(), params)
	text := ""
	for stream.Next() {
		text += stream.Current().Choices[0].Text
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if text == "" || text != whole.Choices[0].Text {
		t.Errorf("streamed %q, at once %q", text, whole.Choices[0].Text)
	}
	return text
}

// benchServer runs bench serve against a server and checks what it prints and writes.
func benchServer(t *testing.T, url string) {
	t.Helper()
	dir := t.TempDir()
	figures := filepath.Join(dir, "figures.json")
	code, stdout, stderr := execute(t, "", "bench", "serve", "--base-url", url, "--num-prompts",
		"50", "--random-input-len", "16", "--random-output-len", "8", "--max-concurrency", "16",
		"--goodput", "ttft:60000", "tpot:60000", "--output-json", figures, "--save-result",
		"--save-detailed", "--result-dir", dir, "--result-filename", "run.json", "--metadata",
		"machine=test", "kind=ci")
	if code != 0 || !strings.Contains(stdout, "Successful requests:                     50") {
		t.Fatalf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	for _, path := range []string{figures, filepath.Join(dir, "run.json")} {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		if m["completed"] != 50.0 || m["failed"] != 0.0 || m["total_output_tokens"] != 400.0 ||
			m["mean_tpot_ms"].(float64) <= 0 || m["max_concurrent_requests"].(float64) > 16 ||
			m["request_goodput"] != m["request_throughput"] || m["machine"] != "test" ||
			m["kind"] != "ci" || len(m["ttfts"].([]any)) != 50 {
			t.Errorf("%s: %v", path, m)
		}
	}
	code, stdout, stderr = execute(t, "", "bench", "serve", "--base-url", url, "--backend",
		"openai-chat", "--num-prompts", "4", "--input-len", "8", "--output-len", "4",
		"--ready-check-timeout-sec", "0", "--percentile-metrics", "e2el")
	if code != 0 || !strings.Contains(stdout, "Total generated tokens:                  16") ||
		!strings.Contains(stdout, "End-to-end Latency") {
		t.Errorf("openai-chat: exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
}

// longStream starts a completion of n tokens and returns its events once the first has come.
func longStream(t *testing.T, url string, n int) *bufio.Reader {
	t.Helper()
	body := `{"prompt":"package main","max_tokens":` + strconv.Itoa(n) +
		`,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"temperature":0}`
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	events := bufio.NewReader(resp.Body)
	if line, err := events.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("first line %q, error %v", line, err)
	}
	return events
}

// goesOn wants what is left of a longStream of n tokens, after its first event, to be the end of
// the text that one process without faults makes, and most of it.
func goesOn(t *testing.T, events io.Reader, n int) {
	t.Helper()
	rest, err := io.ReadAll(events)
	if err != nil {
		t.Errorf("the stream ends with %v", err)
	}
	got, want := texts(t, rest), undisturbed(t, n)
	if len(got) < len(want)/2 || !strings.HasSuffix(want, got) {
		t.Errorf("the stream goes on with %q, wanted the end of %q", got, want)
	}
}

// longest is how many tokens the longest text of undisturbed has.
const longest = 300

// alone is the text of a longStream that one process makes, and where in it each token begins.
var alone struct {
	once    sync.Once
	text    []rune
	offsets []int
}

// undisturbed is the text of a longStream of n tokens, at most longest, from one process, which is
// asked once for all tests: it has no other text than ranks that are many, or new.
func undisturbed(t *testing.T, n int) string {
	t.Helper()
	alone.once.Do(func() {
		p, url := startServer(t)
		code, answer := posted(t, url+"/v1/completions", fmt.Sprintf(
			`{"prompt":"package main","max_tokens":%d,"ignore_eos":true,"temperature":0,"logprobs":0}`,
			longest))
		var a struct {
			Choices []struct {
				Text     string
				Logprobs struct {
					TextOffset []int `json:"text_offset"`
				}
			}
		}
		if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Choices) != 1 {
			t.Fatalf("%d %.300s, %v", code, answer, err)
		}
		alone.text, alone.offsets = []rune(a.Choices[0].Text), a.Choices[0].Logprobs.TextOffset
		p.signal(syscall.SIGTERM)
		p.exit()
	})
	if len(alone.offsets) != longest {
		t.Fatalf("%d tokens without faults", len(alone.offsets))
	}
	if n == longest {
		return string(alone.text)
	}
	return string(alone.text[:alone.offsets[n]])
}

// drains checks that SIGTERM lets a running stream finish, refuses new requests, and ends with exit
// code 0.
func drains(t *testing.T, p *program, url string) {
	t.Helper()
	drainsOn(t, p, url, syscall.SIGTERM)
}

func drainsOn(t *testing.T, p *program, url string, s syscall.Signal) {
	t.Helper()
	const tokens = 300
	events := longStream(t, url, tokens)
	p.signal(s)
	eventually(t, "the drain", func() bool {
		return strings.Contains(p.err.String(),
			"shutting down")
	})
	resp, err := http.Post(url+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt":"x"}`))
	if err == nil {
		if resp.Body.Close(); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a new request is answered %s while draining", resp.Status)
		}
	}
	rest, err := io.ReadAll(events)
	if err != nil {
		t.Errorf("the stream broke off: %v", err)
	}
	// How many events there are is no one's promise: tokens that a busy client has not fetched yet
	// are merged.
	if !bytes.Contains(rest, []byte(`"finish_reason":"length"`)) || !bytes.Contains(rest,
		fmt.Appendf(nil, `"completion_tokens":%d`, tokens)) || !bytes.HasSuffix(rest,
		[]byte("data: [DONE]\n\n")) {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-500):])
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d after %v", code, s)
	}
}

func TestSecondSignalKills(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "-tp", "2")
	pids := twoWorkers(t, p)
	longStream(t, url, 2000)
	p.signal(syscall.SIGTERM)
	eventually(t, "the drain", func() bool {
		return strings.Contains(p.err.String(),
			"another Ctrl-C or signal ends now")
	})
	p.signal(syscall.SIGTERM)
	started := time.Now()
	if code := p.exit(); code == 0 {
		t.Error("exit code 0 although a request was cut off")
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
	workersEnd(t, pids)
}

// TestWorkerKilled kills a worker under a stream: it goes on with the very text that it would have
// had, from a new worker.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "-tp", "2")
	pids := twoWorkers(t, p)
	const tokens = 300
	events := longStream(t, url, tokens)
	if err := syscall.Kill(pids[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn(t, events, tokens)
	for _, want := range []string{"workers failed", "rank 1", "workers are back"} {
		if !strings.Contains(p.err.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	p.stops()
	workersEnd(t, pids)
}

// texts are the texts of the events of a stream of completions, joined.
func texts(t *testing.T, events []byte) string {
	t.Helper()
	var all strings.Builder
	for line := range strings.Lines(string(events)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !ok {
			continue
		}
		var event struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal([]byte("{"+data), &event); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		for _, c := range event.Choices {
			all.WriteString(c.Text)
		}
	}
	return all.String()
}

// TestWorkerKilledExit ends the server with the cause when it is not to restart workers.
func TestWorkerKilledExit(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "-tp", "2", "--on-failure", "exit")
	pids := twoWorkers(t, p)
	events := longStream(t, url, 2000)
	if err := syscall.Kill(pids[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(events)
	if !bytes.Contains(rest, []byte(`"error"`)) {
		t.Errorf("the stream ends with %q, not with an error", rest[max(0, len(rest)-300):])
	}
	if code := p.exit(); code != exitError {
		t.Errorf("exit code %d, want %d", code, exitError)
	}
	last := p.err.String()
	last = last[strings.LastIndex(strings.TrimSpace(last), "\n")+1:]
	if !strings.HasPrefix(last, "eagleray: ") || !strings.Contains(last, "rank 1") {
		t.Errorf("the last line is %q and does not name rank 1", last)
	}
	workersEnd(t, pids)
}

// TestJSONLog: with --log-format json every line is a record, also what ranks print and what ends
// the server.
func TestJSONLog(t *testing.T) {
	t.Parallel()
	p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1", "-tp", "2", "--on-failure", "exit", "--log-format", "json", "--enable-log-requests",
		"--enable-request-id-headers")
	p.shown = true
	p.start()
	eventually(t, "the ready line", func() bool {
		return strings.Contains(p.err.String(), `"msg":"ready"`)
	})
	joinedByID(t, p)
	pid := twoWorkers(t, p)[1]
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil { // it prints its goroutines
		t.Fatal(err)
	}
	if code := p.exit(); code != exitError {
		t.Errorf("exit code %d, want %d", code, exitError)
	}
	printed, last := false, ""
	for text := range strings.Lines(p.err.String()) {
		var line struct {
			Msg, Node, Line, Error string
			Rank, PID              int
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil || line.Msg == "" {
			t.Fatalf("line %q: %v", text, err)
		}
		printed = printed || line.Msg == "output" && line.Rank == 1 && line.PID == pid &&
			line.Node == "localhost" && strings.Contains(line.Line, "SIGQUIT")
		last = line.Msg + ": " + line.Error
	}
	if !printed {
		t.Error("what the rank printed is not in the log")
	}
	if !strings.HasPrefix(last, "ended: ") || !strings.Contains(last, "rank 1") {
		t.Errorf("the last record is %q", last)
	}
}

// joinedByID asks a server with a log in JSON, and finds the lines of the request by the id in the
// answer, with times as numbers.
func joinedByID(t *testing.T, p *program) {
	t.Helper()
	var ready struct {
		URL     string
		Seconds float64
	}
	for text := range strings.Lines(p.err.String()) {
		if strings.Contains(text, `"msg":"ready"`) {
			if err := json.Unmarshal([]byte(text), &ready); err != nil {
				t.Fatalf("line %q: %v", text, err)
			}
		}
	}
	resp, err := http.Post(ready.URL+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt":"a","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	id := resp.Header.Get("X-Request-Id")
	if ready.Seconds <= 0 || id == "" {
		t.Fatalf("ready after %v seconds, id %q", ready.Seconds, id)
	}
	eventually(t, "three lines of the request", func() bool {
		lines := map[string]bool{}
		for text := range strings.Lines(p.err.String()) {
			var line struct {
				Msg, ID string
				MS      float64
				TTFT    float64 `json:"ttft_ms"`
			}
			if json.Unmarshal([]byte(text), &line) == nil && line.ID == id {
				lines[line.Msg] = line.MS > 0
			}
		}
		return lines["request"] && lines["request finished"] && len(lines) == 3
	})
}

func TestDriverKilled(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "-tp", "2")
	pids := twoWorkers(t, p)
	longStream(t, url, 2000)
	p.signal(syscall.SIGKILL)
	p.exit()
	workersEnd(t, pids)
}

// A taken port is known before the model is looked at.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute(t, "", "serve", "/no/such/model", "--port", port)
	if code != exitError || !strings.Contains(stderr, "--port "+port) || !strings.Contains(stderr,
		"address already in use") {
		t.Errorf("exit code %d, errors %q", code, stderr)
	}
}

// Keys, names and warnings come from the environment and a file as they do from flags.
func TestServeConfigured(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file,
		[]byte("served_model_name: [first, second]\ndisable-custom-all-reduce: true\n"+
			"max-model-len: 1k\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--config", file)
	p.cmd.Env = append(p.cmd.Env, "VLLM_API_KEY=secret", "EAGLERAY_CPU_THREADS=1",
		"EAGLERAY_PORT=tcp://10.0.0.1:8000")
	_, url := ready(t, p)
	client := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("wrong"),
		option.WithMaxRetries(0))
	var failure *openai.Error
	if _, err := client.Models.List(t.Context()); !errors.As(err, &failure) ||
		failure.StatusCode != http.StatusUnauthorized {
		t.Errorf("with a wrong key: %v", err)
	}
	client = openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("secret"))
	list, err := client.Models.List(t.Context())
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != "first" {
		t.Errorf("models %+v, error %v", list, err)
	}
	if log := p.err.String(); !strings.Contains(log, "--disable-custom-all-reduce has no effect") ||
		!strings.Contains(log, "max_model_len=1000") || !strings.Contains(log, "threads=1") {
		t.Errorf("log %q", log)
	}
	code, _, stderr := execute(t, "", "bench", "serve", "--base-url", url, "--num-prompts", "1")
	if code != exitError || !strings.Contains(stderr, "status 401") {
		t.Errorf("bench without a key: exit code %d, errors %q", code, stderr)
	}
	code, stdout, stderr := execute(t, "", "bench", "serve", "--base-url", url, "--api-key",
		"secret", "--num-prompts", "2", "--random-input-len", "4", "--random-output-len", "2",
		"--model", "second", "--header", "X-A=b", "--num-warmups", "2", "--request-rate", "50",
		"--logprobs", "1")
	if code != 0 || !strings.Contains(stdout, "Successful requests:                     2 ") {
		t.Errorf("bench with the key: exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
}

// A rank is given none of its driver's secrets.
func TestRanksHaveNoSecrets(t *testing.T) {
	t.Parallel()
	p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1", "-tp", "2")
	p.cmd.Env = append(p.cmd.Env, "VLLM_API_KEY=sk-geheim", "HF_TOKEN=hf_geheim",
		"AWS_SECRET_ACCESS_KEY=geheim", "EAGLERAY_OTHER=kept")
	p, _ = ready(t, p)
	for rank, pid := range twoWorkers(t, p) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(environ, []byte("geheim")) || !bytes.Contains(environ,
			[]byte("EAGLERAY_OTHER=kept")) {
			t.Errorf("rank %d has %q", rank, environ)
		}
	}
	p.signal(syscall.SIGTERM)
	p.exit()
}
