package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// fixedPort is a port that was free a moment ago.
func fixedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// fullDisk is a file on a disk without room.
func fullDisk(t *testing.T) *os.File {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { full.Close() })
	return full
}

// TestFullDisk kills a worker of a server whose log is on a disk without room: neither ends it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full := fullDisk(t)
	port := fixedPort(t)
	p := command(t, "", "serve", "--port", port, "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1", "-tp", "2")
	p.cmd.Stderr = full
	p.start()
	url := "http://127.0.0.1:" + port
	eventually(t, "the server", func() bool {
		resp, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	const tokens = 300
	events := longStream(t, url, tokens)
	if err := syscall.Kill(twoWorkers(t, p)[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn(t, events, tokens)
	p.stops()
}

// TestTenFaults kills a worker ten times within seconds, of a server with the defaults of
// --max-restarts and --restart-window: it serves on.
func TestTenFaults(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "-tp", "2")
	const tokens = 250
	faults := 10
	if testing.Short() {
		faults = 4 // internal/engine has more of them
	}
	for n := range faults {
		events := longStream(t, url, tokens)
		if err := syscall.Kill(twoWorkers(t, p)[n%2], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		goesOn(t, events, tokens)
	}
	if n := strings.Count(p.err.String(), "workers are back"); n != faults {
		t.Errorf("%d recoveries", n)
	}
}

// TestClientRetries kills a server under a client that asks again what was not answered, as
// OpenAI's does: from the server that is started in its place it has the answer of the first.
func TestClientRetries(t *testing.T) {
	t.Parallel()
	port := fixedPort(t)
	serve := func() *program {
		p, _ := ready(t, command(t, "", "serve", "--port", port, "--kv-cache-memory-bytes", "64M",
			"--cpu-threads", "1", "-tp", "2"))
		return p
	}
	client := openai.NewClient(option.WithBaseURL("http://127.0.0.1:"+port+"/v1"),
		option.WithAPIKey("none"), option.WithMaxRetries(10))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func() (string, error) {
		a, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: "go-std-tiny",
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(
				"package main")},
			MaxTokens: openai.Int(500), Temperature: openai.Float(0.9), Seed: openai.Int(3)},
			option.WithJSONSet("ignore_eos", true))
		if err != nil {
			return "", err
		}
		return a.Choices[0].Text, nil
	}
	p := serve()
	want, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		text string
		err  error
	}
	asked := make(chan answer, 1)
	go func() {
		text, err := ask()
		asked <- answer{text, err}
	}()
	eventually(t, "the request", func() bool {
		resp, err := http.Get("http://127.0.0.1:" + port + "/load")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(body), ":1")
	})
	p.signal(syscall.SIGKILL)
	p.exit()
	second := serve()
	if a := <-asked; a.err != nil || a.text != want {
		t.Errorf("%v, text %q, wanted %q", a.err, a.text, want)
	}
	second.signal(syscall.SIGTERM)
	second.exit()
}

// TestOutOfMemory lets the kernel's OOM killer end a worker: it may have no more memory than it
// has, and a request makes it need more. The answer is the undisturbed one.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	group := memoryGroup(t, 65536)
	ask := func(url string) string {
		t.Helper()
		body := `{"prompt":[` + strings.Repeat("7,8,9,", 500) +
			`10],"max_tokens":100,"temperature":0.9,` +
			`"seed":5,"ignore_eos":true,"logprobs":1}`
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return choices(t, string(answer))
	}
	_, url := startServer(t, "-tp", "2")
	want := ask(url)
	p, url := startServer(t, "-tp", "2")
	if err := group.admit(twoWorkers(t, p)[1]); err != nil {
		t.Skip(err)
	}
	if got := ask(url); got != want {
		t.Errorf("answer %s, wanted %s", got, want)
	}
	if !strings.Contains(p.err.String(), "signal: killed") {
		t.Errorf("nothing was killed")
	}
	p.stops()
}

// cgroup is one whose memory is limited.
type cgroup string

// memoryGroup makes a cgroup of its own for the test, of version 2 or 1, with so many bytes of
// memory.
func memoryGroup(t *testing.T, bytes int64) cgroup {
	t.Helper()
	var failures []error
	for root, limit := range map[string]string{"/sys/fs/cgroup": "memory.max",
		"/sys/fs/cgroup/memory": "memory.limit_in_bytes"} {
		dir := filepath.Join(root, fmt.Sprintf("eagleray-test-%d-%d", os.Getpid(),
			cgroupsMade.Add(1)))
		if err := os.Mkdir(dir, 0o755); err != nil {
			failures = append(failures, err)
			continue
		}
		t.Cleanup(func() {
			eventually(t, "the end of the cgroup", func() bool { return os.Remove(dir) == nil })
		})
		// Where it is no file of the kernel's, it does not exist.
		f, err := os.OpenFile(filepath.Join(dir, limit), os.O_WRONLY, 0)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		_, err = f.WriteString(strconv.FormatInt(bytes, 10))
		if err := errors.Join(err, f.Close()); err != nil {
			failures = append(failures, err)
			continue
		}
		return cgroup(dir)
	}
	t.Skipf("no cgroup for memory can be made here: %v", errors.Join(failures...))
	return ""
}

// cgroupsMade counts those that tests have made.
var cgroupsMade atomic.Int64

// admit moves a process into the group.
func (g cgroup) admit(pid int) error {
	return os.WriteFile(filepath.Join(string(g), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// threadsGroup makes a cgroup of its own for the test that bounds its threads, of version 2 or 1.
func threadsGroup(t *testing.T) cgroup {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("eagleray-%s-%d", t.Name(), os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			eventually(t, "the end of the cgroup", func() bool { return os.Remove(dir) == nil })
		})
		if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil {
			return cgroup(dir)
		}
	}
	t.Skip("no cgroup for threads can be made here")
	return ""
}

// bound lets the group have so many threads.
func (g cgroup) bound(t *testing.T, n string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(g), "pids.max"), []byte(n), 0); err != nil {
		t.Fatal(err)
	}
}

// TestNoThreads bounds a server's threads to those that it has, and kills a rank: no process can be
// started in its place, and the driver outlives that. Once there is room the stream goes on.
func TestNoThreads(t *testing.T) {
	t.Parallel()
	g := threadsGroup(t)
	p, url := startServer(t, "-tp", "2", "--max-restarts", "1000")
	pids := twoWorkers(t, p)
	for _, pid := range []int{p.cmd.Process.Pid, pids[0], pids[1]} {
		if err := g.admit(pid); err != nil {
			t.Skipf("no process can be moved to the cgroup: %v", err)
		}
	}
	const tokens = 300
	events := longStream(t, url, tokens)
	g.bound(t, "1")
	if err := syscall.Kill(pids[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a start that fails", func() bool {
		return strings.Contains(p.err.String(),
			"resource temporarily unavailable")
	})
	if resp, err := http.Get(url + "/health"); err != nil ||
		resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health: %v, %v", resp, err)
	}
	g.bound(t, "max")
	goesOn(t, events, tokens)
	p.stops()
}

// TestFewThreads: a limit that is too low for a server is told of at its start, and by doctor.
func TestFewThreads(t *testing.T) {
	t.Parallel()
	g := threadsGroup(t)
	g.bound(t, "24")
	for verb, want := range map[string]string{"serve": "more threads can be started (pids.max 24",
		"doctor": "about"} {
		p := command(t, "")
		p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c",
			`echo $$ > "$1/cgroup.procs" && exec "$0" "$2" -tp 2 --port 0`, os.Args[0], string(g),
			verb}
		p.start()
		if code := p.exit(); code == 0 || !strings.Contains(p.err.String()+p.out.String(), want) {
			t.Errorf("%s: exit code %d: %s%s", verb, code, p.out.String(), p.err.String())
		}
	}
}

// TestFullOutput wants an error of what was to be printed to a disk without room.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	full := fullDisk(t)
	for _, args := range [][]string{
		{"serve", "--check", "--kv-cache-memory-bytes", "64M"},
		{"doctor", "--no-start", "--download-dir", t.TempDir()},
		{"bench", "latency", "--num-iters", "1", "--num-iters-warmup", "0", "--input-len", "8",
			"--output-len", "8", "--kv-cache-memory-bytes", "64M"},
	} {
		p := command(t, "", args...)
		p.cmd.Stdout = full
		if code := p.start().exit(); code != exitError ||
			!strings.Contains(p.err.String(), "no space left on device") {
			t.Errorf("%q: exit code %d: %s", args, code, p.err.String())
		}
	}
}
