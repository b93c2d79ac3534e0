package gpus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/attached"
)

// prints is what the test binary prints as the second program, and its exit code.
const prints = "EAGLERAY_GPUS_TEST"

func init() {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		runtime.LockOSThread()
	}
}

// TestMain lets the test binary be both programs, and one that probes.
func TestMain(m *testing.M) {
	switch {
	case os.Args[0] == "eagleray cuda":
		var code int
		var text string
		if _, err := fmt.Sscanf(os.Getenv(prints), "%d %q", &code, &text); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		fmt.Print(text)
		if !strings.HasPrefix(text, "{") {
			fmt.Print(os.Args[1:])
		}
		os.Exit(code)
	case len(os.Args) > 1 && os.Args[1] == Verb:
		fmt.Fprintln(os.Stderr, Become(os.Args[2:]))
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == "look":
		found, err := Probe(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_ = json.NewEncoder(os.Stdout).Encode(found)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// first is a copy of the test binary in a folder of its own.
func first(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "eagleray")
	clone(t, path)
	return path
}

func clone(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestBecome runs the second program that is attached, that lies beside, and none.
func TestBecome(t *testing.T) {
	for name, c := range map[string]struct {
		place func(path string) error
		code  int
		says  string
	}{
		"attached": {func(path string) error { return attached.Attach(path, os.Args[0]) }, 5,
			"words[probe a b --json]"},
		"beside": {func(path string) error {
			clone(t, filepath.Join(filepath.Dir(path), name))
			return nil
		}, 5, "words[probe a b --json]"},
		"none": {func(string) error { return nil }, 1, "eagleray has no program for GPUs: " +
			"neither is eagleray-cuda attached to it, as in releases and by make build, nor is " +
			"it beside it"},
		"damaged": {func(path string) error {
			if err := attached.Attach(path, os.Args[0]); err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt([]byte{0, 1, 2, 3}, info.Size()-20)
			}
			return errors.Join(err, f.Close())
		}, 1, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := first(t)
			if err := c.place(path); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path, Verb, "probe", "a b", "--json")
			cmd.Env = append(os.Environ(), prints+`=5 "words"`)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code ||
				!strings.Contains(string(out), c.says) {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}

// TestProbe reads what the second program prints, whatever its exit code.
func TestProbe(t *testing.T) {
	path := first(t)
	look := func(text string) string {
		cmd := exec.Command(path, "look")
		cmd.Env = append(os.Environ(), prints+"="+text)
		out, _ := cmd.CombinedOutput()
		return string(bytes.TrimSpace(out))
	}
	if got := look(""); !strings.Contains(got, "probe of GPUs: ") ||
		!strings.Contains(got, "has no program for GPUs") {
		t.Error(got)
	}
	if err := attached.Attach(path, os.Args[0]); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`3 "{\"error\": \"none\"}"`: `{"driver":"","release":"","unmeasured":"",` +
			`"nccl_version":"","without_nccl":"","cublaslt_version":"","apart":false,` +
			`"devices":null,"error":"none"}`,
		`3 ""`:  "invalid",
		`0 "{"`: "it printed",
	} {
		if got := look(text); !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
}
