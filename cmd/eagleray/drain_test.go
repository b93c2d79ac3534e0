package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/open"
)

// A closed terminal sends SIGHUP: it lets requests finish as SIGTERM does.
func TestHangup(t *testing.T) {
	t.Parallel()
	// Where the tests themselves run under nohup, their children would ignore the signal: a process
	// inherits what its parent ignores, but not what it handles.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	p, url := startServer(t)
	drainsOn(t, p, url, syscall.SIGHUP)
}

// Under nohup a closed terminal changes nothing.
func TestNohup(t *testing.T) {
	t.Parallel()
	p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1")
	p.cmd.Path, p.cmd.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`},
		p.cmd.Args...)
	p, url := ready(t, p)
	p.signal(syscall.SIGHUP)
	resp, err := http.Get(url + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	p.signal(syscall.SIGTERM)
	if code := p.exit(); resp.StatusCode != http.StatusOK || code != 0 {
		t.Errorf("status %d after SIGHUP, exit code %d", resp.StatusCode, code)
	}
}

// The exit code tells that requests were cut off at the end of the time for them.
func TestDrainCuts(t *testing.T) {
	t.Parallel()
	p, url := startServer(t, "--shutdown-timeout", "0")
	longStream(t, url, 2000)
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != exitCut || !strings.Contains(p.err.String(),
		"requests were cut off before they were done: 1") {
		t.Errorf("exit code %d, want %d; errors %s", code, exitCut, p.err.String())
	}
}

// piped starts a server whose standard error is a pipe, and returns it when it is ready.
func piped(t *testing.T) (p *program, log *os.File, url string) {
	t.Helper()
	log, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	p = command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1")
	p.cmd.Stderr = out
	p.start()
	out.Close()
	lines := bufio.NewReader(log)
	for url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the server ended: %v", err)
		}
		if m := readyURL.FindStringSubmatch(line); m != nil {
			url = m[1]
		}
	}
	return p, log, url
}

// answers asks n times for a route that is logged.
func answers(t *testing.T, url string, n int) {
	t.Helper()
	client := &http.Client{Timeout: patience}
	for range n {
		resp, err := client.Get(url + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// A log that is not read holds nothing up, not even the end.
func TestLogNotRead(t *testing.T) {
	t.Parallel()
	p, log, url := piped(t)
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, log.Fd(), syscall.F_SETPIPE_SZ,
		4096); errno != 0 {
		t.Fatal(errno)
	}
	answers(t, url, 300)
	p.stops()
}

// A reader of the log that goes away, as head does, does not end the server.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	p, log, url := piped(t)
	log.Close()
	answers(t, url, 20)
	p.stops()
}

// The formats of the log; the address of a server that listens everywhere can be opened.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "INFO  ready               " +
		"model=go-std-tiny ", "json": `"msg":"ready","model":"go-std-tiny"`} {
		p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M",
			"--log-format", format, "--host", "0.0.0.0")
		p.start()
		eventually(t, "the ready line", func() bool {
			return strings.Contains(p.err.String(), "ready ") || strings.Contains(p.err.String(),
				`"ready"`)
		})
		// In the text the line that can be clicked follows.
		line, last := "", "open "
		if format == "json" {
			last = `"ready"`
		}
		eventually(t, "the last line of the start", func() bool {
			return strings.Contains(p.err.String(), last)
		})
		for l := range strings.Lines(p.err.String()) {
			if !strings.Contains(l, "ready ") && !strings.Contains(l, `"ready"`) {
				if line != "" && !strings.Contains(l, " in a browser\n") {
					t.Errorf("%s: after the ready line: %q", format, l)
				}
				continue
			}
			line = l
		}
		if !strings.Contains(line, want) || !strings.Contains(line, open.Kernels("")) ||
			!strings.Contains(line, "http://127.0.0.1:") {
			t.Errorf("%s: the ready line is %q", format, line)
		}
		if rest := line[strings.Index(line,
			"http://127.0.0.1:")+len("http://127.0.0.1:"):]; len(strings.TrimRight(rest,
			"\"}\n")) > 5 {
			t.Errorf("%s: the address is not at the end of %q", format, line)
		}
		p.signal(syscall.SIGTERM)
		p.exit()
	}
}

func TestOpenURL(t *testing.T) {
	for addr, want := range map[string]string{"0.0.0.0:80": "http://127.0.0.1:80",
		"[::]:8000":   "http://127.0.0.1:8000",
		"127.0.0.1:1": "http://127.0.0.1:1", "10.0.0.7:8000": "http://10.0.0.7:8000",
		"[::1]:8000": "http://[::1]:8000"} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := openURL(a, false); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := openURL(&net.TCPAddr{IP: net.IPv4zero, Port: 8}, true); got != "https://127.0.0.1:8" {
		t.Error(got)
	}
	if got := openURL(&net.UnixAddr{Name: "/run/x", Net: "unix"}, false); got != "unix:/run/x" {
		t.Error(got)
	}
}
