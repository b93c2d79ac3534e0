package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestGenerate(t *testing.T) {
	t.Parallel()
	const prompt = "Package strings implements"
	flags := []string{"generate", "--max-tokens", "8", "--temperature", "0",
		"--kv-cache-memory-bytes", "64M"}
	code, plain, stderr := execute(t, "", append(flags, prompt, "func")...)
	texts := strings.SplitAfter(plain, "\n")
	if code != 0 || len(texts) < 3 {
		t.Fatalf("exit code %d, printed %q, errors %q", code, plain, stderr)
	}
	// Prompts of standard input give the same, two ranks too.
	code, lines, stderr := execute(t, prompt+"\nfunc\n", append(flags, "--json", "-tp", "2")...)
	if code != 0 {
		t.Fatalf("exit code %d, errors %q", code, stderr)
	}
	joined := ""
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		var o output
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		if len(o.Tokens) == 0 || o.FinishReason != "length" && o.FinishReason != "stop" {
			t.Errorf("output %+v", o)
		}
		joined += o.Text + "\n"
	}
	if joined != plain {
		t.Errorf("standard input gives %q, arguments %q", joined, plain)
	}
}

// A model with a chat template is asked as in a chat, and answers; bare prompts are for --raw.
func TestGenerateChat(t *testing.T) {
	t.Parallel()
	const question, answer = "What does os.Open do?", "Open opens the named file for reading."
	run := func(stdin string, args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, stdin, append([]string{"generate", "--temperature", "0",
			"--kv-cache-memory-bytes", "64M"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, errors %q", args, code, stderr)
		}
		return stdout
	}
	for _, got := range []string{run("", question), run(question+"\n", "-"), run(question + "\n")} {
		if got != answer+"\n" {
			t.Errorf("the answer is %q", got)
		}
	}
	// All of standard input is one prompt among others.
	if got := run("What does\nos.Open do?\n", question, "-"); !strings.HasPrefix(got,
		answer+"\n") || len(got) <= len(answer)+2 {
		t.Errorf("the answers are %q", got)
	}
	if got := run("", "--raw", question); strings.HasPrefix(got, answer) {
		t.Errorf("the bare prompt goes on with %q", got)
	}
	// The system prompt is in the conversation, before the question, by both of its names; behind
	// "--" a path is a prompt.
	code, _, stderr := execute(t, "", "generate", "--kv-cache-memory-bytes", "64M",
		"--chat-template",
		`{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ raise_exception("saw " + messages[0].content + "/" + messages[1].content) }}`,
		"--system-prompt", "be brief", "--", "./hello")
	if code != exitError || !strings.Contains(stderr, "saw be brief/./hello") {
		t.Errorf("exit code %d, errors %q", code, stderr)
	}
}

func TestChat(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := execute(t, "What does strings.Index do?\nAnd strings.Repeat?\n", "chat",
		"--kv-cache-memory-bytes", "64M", "--max-tokens", "12", "--disable-custom-all-reduce")
	if code != 0 || len(strings.TrimSpace(stdout)) < 10 {
		t.Errorf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "--disable-custom-all-reduce has no effect") {
		t.Errorf("errors %q", stderr)
	}
}

// A signal ends a chat that waits for input.
func TestChatInterrupted(t *testing.T) {
	t.Parallel()
	p := command(t, "", "chat", "--kv-cache-memory-bytes", "64M", "--max-tokens", "4")
	p.cmd.Stdin = nil
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p.start()
	if _, err := in.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool { return strings.Contains(p.out.String(), "\n") })
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
}

func TestBenchEngine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func(name string) (m map[string]any) {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	code, stdout, stderr := execute(t, "", "bench", "throughput", "--num-prompts", "6",
		"--backend", "vllm", "--random-input-len", "8", "--random-output-len", "4", "--n", "2",
		"--kv-cache-memory-bytes", "64M",
		"--output-json", filepath.Join(dir, "throughput.json"))
	if code != 0 || !strings.HasPrefix(stdout, "Throughput: ") {
		t.Errorf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	if m := read("throughput.json"); m["num_requests"] != 6.0 ||
		m["total_num_tokens"] != 6.0*(8+2*4) {
		t.Errorf("throughput %v", m)
	}
	code, stdout, stderr = execute(t, "", "bench", "latency", "--num-iters", "2",
		"--num-iters-warmup", "1", "--batch-size", "2", "--input-len", "4", "--output-len", "4",
		"--kv-cache-memory-bytes", "64M", "-tp", "2", "--read-bytes", "8000000", "--output-json",
		filepath.Join(dir, "latency.json"))
	if code != 0 || !strings.Contains(stdout, "99% percentile latency: ") ||
		!strings.Contains(stdout, "share of it: ") {
		t.Errorf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	if m := read("latency.json"); len(m["latencies"].([]any)) != 2 ||
		m["decode_step_ms"].(float64) <= 0 {
		t.Errorf("latency %v", m)
	}
	code, _, stderr = execute(t, "", "bench", "throughput", "--num-prompts", "1", "--input-len",
		"4", "--output-len", "1", "--kv-cache-memory-bytes", "64M", "--output-json",
		filepath.Join(dir, "no", "such", "folder"))
	if code != 1 || !strings.Contains(stderr, "--output-json") {
		t.Errorf("exit code %d, errors %q", code, stderr)
	}
}

func TestResultFileName(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, b := range map[string]benchServe{
		"openai-infqps-m-20260102-030405.json": {backend: "openai",
			rate: math.Inf(1)},
		"vllm-10.0qps-concurrency4-m-20260102-030405.json": {backend: "vllm", rate: 10,
			concurrency: 4},
		"x-0.5qps-m-20260102-030405.json": {result: resultFile{label: "x"},
			rate: 0.5},
		"openai-ramp-up-linear-1qps-9qps-m-20260102-030405.json": {backend: "openai",
			rampUp: "linear", rampStart: 1, rampEnd: 9},
		"mine.json": {result: resultFile{name: "mine.json"}},
	} {
		if got := b.fileName("org/m", at); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
