package ray_test

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// A bridge that does not speak the protocol must end the client, not hang it.
func TestHostileBridge(t *testing.T) {
	hello := `{"hello":{"ray":"1","python":"3"}}`
	framed := func(bodies ...string) (out []byte) {
		for _, b := range bodies {
			data, err := frame.Append(nil, json.RawMessage(b))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, data...)
		}
		return out
	}
	for name, data := range map[string][]byte{
		"nothing":           {},
		"no hello":          framed(`{"beat":true}`),
		"no frame":          []byte("Traceback (most recent call last):"),
		"a hostile length":  {0xff, 0xff, 0xff, 0xff},
		"no object":         framed(`[1]`),
		"an early exit":     framed(`{"exit":{"rank":1,"pid":2}}`),
		"hello twice":       framed(hello, hello, hello),
		"an unasked answer": framed(hello, `{"id":12345,"result":{}}`),
		"half a frame":      append(framed(hello), 0, 0, 0, 9, '{'),
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = theirs.Write(data)
				theirs.Close()
			}()
			c, err := ray.Start(within(t), ray.Options{Conn: ours})
			if err != nil {
				if !errors.Is(err, ray.ErrGone) {
					t.Errorf("start: %v", err)
				}
				return
			}
			if _, err := c.Nodes(within(t)); !errors.Is(err, ray.ErrGone) {
				t.Errorf("call: %v", err)
			}
			if err := c.Close(within(t)); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// TestSlowHello has a Python that needs forty seconds to import Ray, as from a folder on another
// machine.
func TestSlowHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		hello, err := frame.Append(nil, json.RawMessage(`{"hello":{"ray":"1","python":"3"}}`))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(40 * time.Second)
			_, _ = theirs.Write(hello)
		}()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		c, err := ray.Start(within(t), ray.Options{Conn: ours})
		if err != nil {
			t.Fatal(err)
		}
		// From now on its silence counts.
		<-c.Gone()
		if err := c.Err(); !strings.Contains(err.Error(), "silent for 1") {
			t.Errorf("gone: %v", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// Without a home there is no token of the user's, whatever lies in the current folder.
func TestTokenWithoutHome(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".ray"), 0o755); err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(dir, "python")
	for name, text := range map[string]string{filepath.Join(dir, ".ray", "auth_token"): "secret",
		python: "#!/bin/sh\necho \"mode <$RAY_AUTH_MODE>\"; exit 9\n"} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for home, want := range map[string]string{"": "mode <>", dir: "mode <token>"} {
		_, err := ray.Start(within(t), ray.Options{Python: python, Env: []string{"HOME=" + home}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("HOME=%s: got %v, want %s", home, err, want)
		}
	}
}

func TestHelloError(t *testing.T) {
	f := newFake()
	f.HelloError = &frame.Fault{Class: "ImportError", Message: "libstdc++ is too old"}
	_, err := ray.Start(within(t), ray.Options{Conn: f.Dial(), Python: "/opt/python"})
	if err == nil || !strings.Contains(err.Error(), "/opt/python") ||
		!strings.Contains(err.Error(), "libstdc++ is too old") {
		t.Errorf("got %v", err)
	}
	f.Wait()
}

func TestFindPython(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"bin/python", "python3", "mine"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for _, test := range []struct{ flag, env, want string }{
		{filepath.Join(dir, "mine"), dir, "mine"},
		{"mine", dir, "mine"},
		{"", dir, "bin/python"},
		{"", "", "python3"},
	} {
		t.Setenv("VIRTUAL_ENV", test.env)
		if got, err := ray.FindPython(test.flag); err != nil ||
			got != filepath.Join(dir, test.want) {
			t.Errorf("%+v: got %q, %v", test, got, err)
		}
	}
	for _, test := range []struct{ flag, env, path, want string }{
		{"nowhere", "", dir, "--ray-python nowhere"},
		{"", "/nonexistent", dir, "VIRTUAL_ENV /nonexistent"},
		{"", "", "/nonexistent", "--ray-python"},
	} {
		t.Setenv("VIRTUAL_ENV", test.env)
		t.Setenv("PATH", test.path)
		if got, err := ray.FindPython(test.flag); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %q, %v", test, got, err)
		}
	}
}
