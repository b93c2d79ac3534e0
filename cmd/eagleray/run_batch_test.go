package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// batchInput writes n rows, which take some steps each.
func batchInput(t *testing.T, dir string, n int) string {
	t.Helper()
	path := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(path, batchRows(n, 24), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func batchRows(n, tokens int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"row-%d","method":"POST","url":"/v1/completions",`+
			`"body":{"model":"go-std-tiny","prompt":"Package %d","max_tokens":%d,"temperature":0,"ignore_eos":true}}`+"\n",
			i, i, tokens)
	}
	return b.Bytes()
}

// batchTexts are the answers of an output by their custom ids, each of which must be there once.
func batchTexts(t *testing.T, output []byte) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for line := range bytes.Lines(output) {
		var o struct {
			CustomID string `json:"custom_id"`
			Response struct {
				Status int `json:"status_code"`
				Body   struct {
					Choices []struct{ Text string }
				}
			}
			Error *struct{}
		}
		if err := json.Unmarshal(line, &o); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, twice := texts[o.CustomID]; twice {
			t.Errorf("%s is answered twice", o.CustomID)
		}
		if o.Response.Status != 200 || o.Error != nil || len(o.Response.Body.Choices) != 1 {
			t.Fatalf("%s", line)
		}
		texts[o.CustomID] = o.Response.Body.Choices[0].Text
	}
	return texts
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRunBatchKilled kills run-batch again and again: the rows that were answered stay, the others
// are answered by the next one, none twice, and all as without a kill.
func TestRunBatchKilled(t *testing.T) {
	t.Parallel()
	// The batch may be over before it is killed.
	for rows := 60; !runBatchKilled(t, rows); rows *= 2 {
	}
}

// runBatchKilled returns false when nothing was left to do after the kills.
func runBatchKilled(t *testing.T, rows int) bool {
	dir := t.TempDir()
	in, out, undisturbed := batchInput(t, dir, rows), filepath.Join(dir, "out.jsonl"),
		filepath.Join(dir, "undisturbed.jsonl")
	// Few at a time: some are done before others have begun.
	args := func(out string) []string {
		return []string{"run-batch", "-i", in, "-o", out, "--max-num-seqs", "8"}
	}
	code, _, stderr := execute(t, "", args(undisturbed)...)
	if code != 0 || !strings.Contains(stderr, fmt.Sprint(rows, " rows in ")) ||
		!strings.Contains(stderr, fmt.Sprint(": ", rows, " succeeded, 0 failed\n")) {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	want := batchTexts(t, readFile(t, undisturbed))
	var kept []byte
	for kill := 1; kill <= 3; kill++ {
		p := command(t, "", args(out)...).start()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			b, err := os.ReadFile(out)
			if err == nil && bytes.Count(b, []byte("\n")) >= 10*kill {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes of output, %v; %s", len(b), err, p.err.String())
			}
		}
		p.signal(syscall.SIGKILL)
		if p.exit(); !bytes.HasPrefix(readFile(t, out), kept) {
			t.Fatal("an answer that was there has changed")
		}
		kept = readFile(t, out)
		kept = kept[:bytes.LastIndexByte(kept, '\n')+1]
	}
	n := bytes.Count(kept, []byte("\n"))
	if n == rows {
		return false
	}
	code, _, stderr = execute(t, "", args(out)...)
	if summary := fmt.Sprintf("%d succeeded, 0 failed; %d of them were answered before\n", rows,
		n); code != 0 || !strings.HasSuffix(stderr, summary) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	got := batchTexts(t, readFile(t, out))
	for id, text := range want {
		if got[id] != text {
			t.Errorf("%s: %q instead of %q", id, got[id], text)
		}
	}
	if len(got) != rows || !bytes.HasPrefix(readFile(t, out), kept) {
		t.Errorf("%d rows are answered", len(got))
	}
	return true
}

// TestRunBatchOverHTTP fetches the input and sends the output, past faults of the other end.
func TestRunBatchOverHTTP(t *testing.T) {
	t.Parallel()
	var gets, puts atomic.Int64
	var sent atomic.Pointer[[]byte]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/none":
			http.NotFound(w, r)
		case r.Method == "GET" && gets.Add(1) > 1:
			_, _ = w.Write(batchRows(5, 4))
		case r.Method == "PUT" && puts.Add(1) > 1:
			body, err := io.ReadAll(r.Body)
			if err == nil && r.ContentLength == int64(len(body)) {
				sent.Store(&body)
			}
		default:
			http.Error(w, "not now", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	code, _, stderr := execute(t, "", "run-batch", "-i", server.URL+"/in?sig=secret", "-o",
		server.URL+"/out?sig=secret", "--output-tmp-dir", dir, "--tool-call-parser", "hermes",
		"--default-chat-template-kwargs.enable_thinking", "false", "--response-role", "assistant")
	if code != 0 || sent.Load() == nil {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	if n := len(batchTexts(t, *sent.Load())); n != 5 || gets.Load() != 2 || puts.Load() != 2 {
		t.Errorf("%d rows, %d GET, %d PUT", n, gets.Load(), puts.Load())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	code, _, stderr = execute(t, "", "run-batch", "-i", server.URL+"/none?sig=secret", "-o",
		filepath.Join(dir, "out.jsonl"))
	if code != 1 || !strings.Contains(stderr,
		"--input-file: GET "+server.URL+"/none: 404 Not Found") || strings.Contains(stderr,
		"secret") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestRunBatchPiped answers what comes from standard input, and from a pipe with a name, on its
// standard output.
func TestRunBatchPiped(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := execute(t, string(batchRows(5, 4)), "run-batch", "-i", "-",
		"-o", "-")
	if code != 0 || len(batchTexts(t, []byte(stdout))) != 5 {
		t.Errorf("exit code %d, %s, %s", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, string(batchRows(3, 4)), "run-batch", "-i", "/dev/stdin",
		"-o", "-")
	if code != 0 || len(batchTexts(t, []byte(stdout))) != 3 {
		t.Errorf("exit code %d, %s, %s", code, stdout, stderr)
	}
}

// TestRedirects follows none from an address elsewhere to one of this machine.
func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"http://127.0.0.1:1/a", "http://127.0.0.1:2/b", true},
		{"http://192.0.2.1/a", "http://127.0.0.1/b", false},
		{"http://192.0.2.1/a", "http://169.254.169.254/latest", false},
		{"http://192.0.2.1/a", "http://[::1]/b", false},
		{"http://192.0.2.1/a", "http://10.1.2.3/b", false},
		{"http://192.0.2.1/a", "http://192.0.2.2/b", true},
		{"http://192.0.2.1/a", "https://192.0.2.2/b", true},
		{"https://192.0.2.1/a", "http://192.0.2.1/b", false},
	} {
		from, _ := http.NewRequest("GET", c.from, nil)
		to, _ := http.NewRequest("GET", c.to, nil)
		if err := checkRedirect(to, []*http.Request{from}); (err == nil) != c.ok {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}
