package ray_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
	"golang.org/x/sys/unix"
)

var factsOfWorkers = []fact{
	{"worker's environment",
		"a worker has the node's environment, the defaults where that is silent, then what is set",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			out := filepath.Join(t.TempDir(), "env")
			spec := shell(f.Rank, `env > "$OUT.part"; mv "$OUT.part" "$OUT"`)
			spec.SetEnv = map[string]string{"OUT": out, "HOME": "/mine", "TWICE": "set"}
			spec.DefaultEnv = map[string]string{"PATH": "/nowhere", "NEW": "default",
				"TWICE":          "default",
				"RAY_AUTH_TOKEN": "secret", nodeVariable: "of the driver"}
			spec.UnsetEnv = []string{"CUDA_VISIBLE_DEVICES", "NOT_THERE"}
			if _, err := c.StartWorkers(within(t), []ray.StartSpec{spec}); err != nil {
				t.Fatal(err)
			}
			if e := raytest.NextExit(t, c); e.Code == nil || *e.Code != 0 {
				t.Fatalf("exit %+v", e)
			}
			data, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(data)), "\n")
			for _, want := range []string{"HOME=/mine", "NEW=default", "TWICE=set",
				"PATH=" + os.Getenv("PATH"),
				nodeVariable + "=" + nodeValue, fmt.Sprintf("EAGLERAY_PARENT_PID=%d", f.PID)} {
				if !slices.Contains(lines, want) {
					t.Errorf("no %s in %q", want, lines)
				}
			}
			for _, line := range lines {
				if strings.HasPrefix(line, "RAY_AUTH_") ||
					strings.HasPrefix(line, "CUDA_VISIBLE_DEVICES=") {
					t.Errorf("%s is there", line)
				}
			}
		}},
	{"worker's input",
		"what a worker is given on its standard input arrives whole, and the input stays open",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			out := filepath.Join(t.TempDir(), "stdin")
			spec := shell(f.Rank, "exec cat > "+out)
			// A pipe holds 64 KiB: the start must not wait until the worker has read the rest.
			spec.Stdin = []byte("invitation\x00\xff\n" + strings.Repeat("x", 1<<20))
			if _, err := c.StartWorkers(within(t), []ray.StartSpec{spec}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the worker has its input", func() bool {
				got, err := os.ReadFile(out)
				return err == nil && string(got) == string(spec.Stdin)
			})
			if err := c.StopWorkers(within(t), []int{f.Rank}, patience); err != nil {
				t.Errorf("stop: %v", err)
			}
			if e := raytest.NextExit(t, c); e.Rank != f.Rank || e.Code == nil &&
				e.Signal != "SIGTERM" {
				t.Errorf("exit %+v", e)
			}
		}},
	{"more input",
		"a worker that runs is given more input, after the first; one that has ended is told by " +
			"rank",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			out := filepath.Join(t.TempDir(), "stdin")
			spec := shell(f.Rank, "exec head -n 3 > "+out)
			spec.Stdin = []byte("one\n")
			if _, err := c.StartWorkers(within(t), []ray.StartSpec{spec}); err != nil {
				t.Fatal(err)
			}
			for _, more := range []string{"two\n", "three\n"} {
				if err := c.FeedWorkers(within(t), []ray.Input{{Rank: f.Rank,
					Stdin: []byte(more)}}); err != nil {
					t.Fatal(err)
				}
			}
			if e := raytest.NextExit(t, c); e.Code == nil || *e.Code != 0 {
				t.Fatalf("exit %+v", e)
			}
			if got, err := os.ReadFile(out); err != nil || string(got) != "one\ntwo\nthree\n" {
				t.Errorf("the worker has read %q, %v", got, err)
			}
			err := c.FeedWorkers(within(t), []ray.Input{{Rank: f.Rank, Stdin: []byte("four\n")}})
			if got := rankClass(t, err, f.Rank); !strings.Contains(got, "RuntimeError") ||
				!strings.Contains(err.Error(), "no worker runs") {
				t.Errorf("input of a worker that has ended: %v", err)
			}
		}},
	{"worker's group",
		"a worker is in the process group of its parent, which Ray's clean-up reaches",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			runScript(t, c, f.Rank, "ps -o pgid= -p $$ >&2")
			group, err := unix.Getpgid(f.PID)
			if err != nil {
				t.Fatal(err)
			}
			e := raytest.NextExit(t, c)
			if len(e.Stderr) != 1 || strings.TrimSpace(e.Stderr[0]) != strconv.Itoa(group) {
				t.Errorf("process group %q, the actor's %d", e.Stderr, group)
			}
		}},
	{"failed start",
		"a worker that cannot be started is told by rank with Python's reason; its actor lives on",
		func(t *testing.T, w *world) {
			c := w.client(t)
			w.actors(t, 2)
			plain := filepath.Join(t.TempDir(), "plain")
			if err := os.WriteFile(plain, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := c.StartWorkers(within(t), []ray.StartSpec{{Rank: 0, Path: "/nonexistent"},
				{Rank: 1, Path: plain}})
			if got := rankClass(t, err, 0); !strings.Contains(got, "FileNotFoundError") {
				t.Errorf("no file: %s in %v", got, err)
			}
			if got := rankClass(t, err, 1); !strings.Contains(got, "PermissionError") {
				t.Errorf("no permission: %s in %v", got, err)
			}
			runScript(t, c, 0, waits)
			_, err = c.StartWorkers(within(t), []ray.StartSpec{shell(0, "true")})
			if got := rankClass(t, err, 0); !strings.Contains(got, "RuntimeError") ||
				!strings.Contains(err.Error(), "running already") {
				t.Errorf("a second worker: %v", err)
			}
			if facts, err := c.Facts(within(t), []int{0, 1}, ray.FactsRequest{}); err != nil ||
				len(facts) != 2 {
				t.Errorf("facts beside a worker: %+v, %v", facts, err)
			}
			if err := c.StopWorkers(within(t), []int{0}, patience); err != nil {
				t.Errorf("stop: %v", err)
			}
			raytest.NextExit(t, c)
		}},
	{"exit code", "the end of a worker is told with its exit code and the last twenty lines of " +
		"its errors", func(t *testing.T, w *world) {
		c, f := w.client(t), w.actors(t, 1)[0]
		started := runScript(t, c, f.Rank, "seq 30 >&2; exit 7")
		e := raytest.NextExit(t, c)
		if e.Rank != f.Rank || e.PID != started.PID || e.Code == nil || *e.Code != 7 ||
			e.Signal != "" || e.Class != "" ||
			len(e.Stderr) != 20 || e.Stderr[0] != "11" || e.Stderr[19] != "30" ||
			e.At.IsZero() {
			t.Errorf("exit %+v", e)
		}
	}},
	{"signal", "the end of a worker by a signal is told with its name; nothing of an earlier " +
		"worker is left", func(t *testing.T, w *world) {
		c, f := w.client(t), w.actors(t, 1)[0]
		started := runScript(t, c, f.Rank, "echo once >&2; exec sleep 600")
		eventually(t, "the script to sleep", func() bool {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", started.PID))
			return err == nil && strings.HasPrefix(string(args), "sleep\x00")
		})
		kill(t, started.PID, unix.SIGKILL)
		e := raytest.NextExit(t, c)
		if e.Rank != f.Rank || e.PID != started.PID || e.Code != nil || e.Signal != "SIGKILL" ||
			!slices.Equal(e.Stderr, []string{"once"}) {
			t.Errorf("exit %+v", e)
		}
	}},
	{"stop", "a worker that ignores SIGTERM is killed after the grace",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			ready := filepath.Join(t.TempDir(), "ready")
			runScript(t, c, f.Rank, `trap "" TERM; touch `+ready+`; while :; do sleep 0.1; done`)
			eventually(t, "the script to ignore SIGTERM", func() bool { return exists(ready) })
			if err := c.StopWorkers(within(t), []int{f.Rank}, 300*time.Millisecond); err != nil {
				t.Errorf("stop: %v", err)
			}
			if e := raytest.NextExit(t, c); e.Rank != f.Rank || e.Signal != "SIGKILL" {
				t.Errorf("exit %+v", e)
			}
		}},
	{"install", "a file comes to a node through Ray, is kept by its hash, and trusted by its " +
		"hash only", func(t *testing.T, w *world) { install(t, w) }},
}

func install(t *testing.T, w *world) {
	c := w.client(t)
	w.actors(t, 2)
	script := fmt.Sprintf("#!/bin/sh\necho %s >&2\nexit 3\n# %s ", t.Name(), time.Now()) +
		strings.Repeat("x", 20<<20)
	file := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(script))
	digest := hex.EncodeToString(sum[:])
	_, err := c.Install(within(t), []int{0}, file, strings.Repeat("0", 64))
	refused(t, "a wrong hash", err, "ValueError", "SHA-256")
	has := func(want, hint, what string) {
		t.Helper()
		facts, err := c.Facts(within(t), []int{0},
			ray.FactsRequest{SHA256: digest, CacheHint: hint})
		if err != nil || facts[0].HasBinary != want {
			t.Errorf("%s: %+v, %v, want %q", what, facts, err, want)
		}
	}
	has("", file, "a file that is not executable")
	installed, err := c.Install(within(t), []int{0, 1}, file, digest)
	if err != nil || len(installed) != 2 {
		t.Fatalf("install: %+v, %v", installed, err)
	}
	again, err := c.Install(within(t), []int{0, 1}, file, digest)
	if err != nil || len(again) != 2 || !again[0].Cached || !again[1].Cached ||
		again[0].Path != installed[0].Path {
		t.Errorf("install again: %+v, %v", again, err)
	}
	path := installed[0].Path
	if !strings.HasPrefix(path, w.cacheDir()+"/") {
		t.Errorf("installed at %s", path)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil ||
		slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			return strings.Contains(e.Name(),
				"partial")
		}) {
		t.Errorf("left in the cache: %v, %v", entries, err)
	}
	has(path, "", "the installed file")
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	has(file, file, "the driver's own path")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	has("", "", "a file that was changed")
	if again, err = c.Install(within(t), []int{0}, file, digest); err != nil || again[0].Cached {
		t.Errorf("install over a changed file: %+v, %v", again, err)
	}
	if _, err := c.StartWorkers(within(t), []ray.StartSpec{{Path: path}}); err != nil {
		t.Fatal(err)
	}
	if e := raytest.NextExit(t, c); e.Code == nil || *e.Code != 3 ||
		!slices.Equal(e.Stderr, []string{t.Name()}) {
		t.Errorf("the installed file: %+v", e)
	}
}
