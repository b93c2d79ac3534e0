package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestInheritedSocket replaces a server by another one on a socket that outlives both: no
// connection is refused and no request fails.
func TestInheritedSocket(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	url := "http://" + l.Addr().String()
	start := func() *program {
		// A shell knows the id of the process that it becomes.
		p := command(t, "")
		p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c",
			`LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve --kv-cache-memory-bytes 64M --cpu-threads 1 -tp 2`,
			os.Args[0]}
		p.cmd.ExtraFiles = []*os.File{socket}
		return p.start()
	}
	first := start()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var asked atomic.Int64
	ask := func() error {
		r, err := client.Post(url+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt":"package main","max_tokens":8}`))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			// A draining server says so to who is connected already.
			err = fmt.Errorf("%d %s", r.StatusCode, body)
		}
		asked.Add(1)
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := ask(); err != nil {
				ended <- err
				return
			}
		}
	}()
	second := start()
	for !strings.Contains(second.err.String(), "msg=ready") {
		select {
		case <-second.done:
			t.Fatal(second.err.String())
		case <-time.After(time.Millisecond):
		}
	}
	first.stops()
	for before := asked.Load(); asked.Load() < before+5; {
		select {
		case err := <-ended:
			t.Fatalf("a request failed: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("a request failed: %v", err)
	}
	second.stops()
}
