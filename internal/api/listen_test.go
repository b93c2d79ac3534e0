package api

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
)

// TestListenLocalhost: localhost is both of its addresses on one port.
func TestListenLocalhost(t *testing.T) {
	noLeak(t)
	l, err := server.Listen("localhost", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	hosts := []string{"127.0.0.1"}
	if six, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		six.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		dialled, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.RemoteAddr().String(); got != dialled.LocalAddr().String() {
			t.Errorf("accepted %s for %s", got, dialled.LocalAddr())
		}
		dialled.Close()
		conn.Close()
	}
	var number int
	fmt.Sscan(port, &number)
	if again, err := server.Listen("localhost", number); err == nil {
		again.Close()
		t.Error("a taken port was taken again")
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
}

// TestLittleServer is the child of TestFewDescriptors: a server that may have 64 descriptors.
func TestLittleServer(t *testing.T) {
	if os.Getenv("EAGLERAY_TEST_DESCRIPTORS") == "" {
		t.Skip("the child of another test")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64,
		Max: 64}); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	l, err := server.Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	limited := s.Limit(l)
	fmt.Printf("\naddress %s\n%s\n", l.Addr(), s.log)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		l.Close()
	}()
	_ = s.HTTPServer(l.Addr().String()).Serve(limited)
}

// TestFewDescriptors: with more clients than a process may have descriptors, /health answers,
// others are refused with 503, and once connections have no request they make room.
func TestFewDescriptors(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^TestLittleServer$", "-test.v")
	child.Env = append(os.Environ(), "EAGLERAY_TEST_DESCRIPTORS=64")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = child.Wait()
	})
	lines := bufio.NewScanner(out)
	addr, warned := "", false
	for lines.Scan() && !warned {
		if a, ok := strings.CutPrefix(lines.Text(), "address "); ok {
			addr = a
		}
		warned = strings.Contains(lines.Text(), "ulimit -n")
	}
	if addr == "" || !warned {
		t.Fatalf("address %q, warned of the limit: %v", addr, warned)
	}

	// Bodies that do not come hold their connections.
	var held []net.Conn
	for range 100 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nContent-Length: 100\r\n\r\n", completionsPath)
		held = append(held, conn)
	}
	ask := func(method, path, body string) int {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
			Timeout: 20 * time.Second}
		r, err := http.NewRequest(method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for range 5 {
		if code := ask("GET", "/health", ""); code != 200 {
			t.Errorf("/health answered %d", code)
		}
	}
	if code := ask("POST", completionsPath, `{`+hi+`}`); code != 503 {
		t.Errorf("a request beyond the limit got %d", code)
	}
	for _, conn := range held {
		conn.Close()
	}
	for range 50 { // idle ones make room for each other
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	deadline := time.Now().Add(20 * time.Second)
	for ask("POST", completionsPath, `{`+hi+`}`) != 200 {
		if time.Now().After(deadline) {
			t.Fatal("idle connections keep requests out")
		}
	}
}
