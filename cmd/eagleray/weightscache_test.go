package main

import (
	"crypto/sha256"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin/builtintest"
)

// cached is the folder of a model that has files, and a folder for its packed weights.
type cached struct {
	t          *testing.T
	model, dir string
}

func newCached(t *testing.T) *cached {
	t.Helper()
	model, err := filepath.Abs("../../testdata/models/go-std-tiny")
	if err != nil {
		t.Fatal(err)
	}
	return &cached{t: t, model: model, dir: filepath.Join(t.TempDir(), "cache")}
}

// files are the packed weights that are stored, by their names, as hashes.
func (c *cached) files() map[string][sha256.Size]byte {
	c.t.Helper()
	paths, err := filepath.Glob(filepath.Join(c.dir, "*.weights"))
	if err != nil {
		c.t.Fatal(err)
	}
	all := map[string][sha256.Size]byte{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		all[filepath.Base(path)] = sha256.Sum256(content)
	}
	return all
}

// answer is what a server says, which then has logged a text as many times, and ends.
func (c *cached) answer(text string, times int, args ...string) string {
	c.t.Helper()
	p, url := startServer(c.t, append([]string{c.model, "--weights-cache", c.dir}, args...)...)
	said, _ := said(c.t, url)
	if text != "" {
		p.logs(text, times)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		c.t.Errorf("exit code %d: %s", code, p.err.String())
	}
	return said
}

// logs waits until a program has logged a text so many times.
func (p *program) logs(text string, times int) {
	p.t.Helper()
	eventually(p.t, text, func() bool { return strings.Count(p.err.String(), text) >= times })
}

const (
	areStored = "packed weights are stored for the next start"
	areUsed   = "packed weights of an earlier start are used"
)

// TestWeightsCacheGenerate generates twice: the first run ends when the weights are stored, the
// second one maps them, and says the same.
func TestWeightsCacheGenerate(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	args := []string{"generate", "--model", c.model, "--weights-cache", c.dir, "--cpu-threads", "1",
		"--kv-cache-memory-bytes", "64M", "--temperature", "0", "--max-tokens", "20",
		"Package bytes implements"}
	var first string
	for i, want := range []string{areStored, areUsed} {
		p := command(t, "", args...)
		p.cmd.Env = append(p.cmd.Env, rayJobVariable+"={}") // jobs log what servers do
		code := p.start().exit()
		out, errOut := p.out.String(), p.err.String()
		if code != 0 || strings.Count(errOut, want) != 1 || len(out) < 20 {
			t.Errorf("run %d: exit code %d, %q, %q without %q", i, code, out, errOut, want)
		}
		if i == 0 {
			first = out
		} else if out != first {
			t.Errorf("the first run says %q, the second %q", first, out)
		}
	}
	if n := len(c.files()); n != 1 {
		t.Errorf("%d files are stored", n)
	}
}

// TestWeightsCacheServe has a server end in the middle of storing, and a file damaged: what is
// answered is the same, and a sound file is stored again. An idle server says that it has stored.
func TestWeightsCacheServe(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	for range 3 {
		p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M",
			"--cpu-threads", "1", c.model, "--weights-cache", c.dir).start()
		eventually(t, "a file in the cache", func() bool {
			list, _ := os.ReadDir(c.dir)
			return len(list) > 0
		})
		p.signal(syscall.SIGKILL)
		p.exit()
		for name := range c.files() { // it was too late
			if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, url := startServer(t, c.model)
	want, _ := said(t, url)
	same := func(when, text string) {
		t.Helper()
		if got := c.answer(text, 1); got != want {
			t.Errorf("%s: answers %q, without a cache %q", when, got, want)
		}
	}
	same("after servers that were killed", areStored)
	stored := c.files()
	if len(stored) != 1 {
		t.Errorf("%d files are stored", len(stored))
	}
	same("from the cache", areUsed)
	for name, before := range stored {
		path := filepath.Join(c.dir, name)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)/2] ^= 1
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		p, url := startServer(t, c.model, "--weights-cache", c.dir)
		p.says("damaged: the checksum of the bytes from")
		if got, _ := said(t, url); got != want {
			t.Errorf("a damaged cache: answers %q, without one %q", got, want)
		}
		p.says(areStored)
		if after := c.files()[name]; after != before {
			t.Error("another file is stored in place of the damaged one")
		}
	}
	if left, err := filepath.Glob(filepath.Join(c.dir, "*.part")); len(left) > 0 || err != nil {
		t.Errorf("left in the cache: %q, %v", left, err)
	}
}

// TestWeightsCacheRanks stores the shares of two ranks, which the next start maps. An update of the
// weights, sleep and another layout leave the files as they are.
func TestWeightsCacheRanks(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	flags := []string{"-tp", "2", "--enable-rlhf", "--enable-sleep-mode",
		"--allowed-local-weights", os.TempDir(), "--enable-elastic-ep"}
	want := c.answer(areStored, 2, flags...)
	stored := c.files()
	if len(stored) != 2 {
		t.Fatalf("two ranks have stored %d files", len(stored))
	}
	p, url := startServer(t, append([]string{c.model, "--weights-cache", c.dir}, flags...)...)
	p.logs(areUsed, 2)
	ask := func(route string, body map[string]any) {
		t.Helper()
		if status, text := steer(t, url, route, body); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", route, status, text)
		}
	}
	path := builtintest.OtherWeights(t, "../../internal/rank/builtin")
	ask("/init_weight_transfer_engine", map[string]any{"init_info": map[string]any{}})
	ask("/start_weight_update", nil)
	ask("/update_weights", map[string]any{"update_info": map[string]any{"path": path}})
	ask("/finish_weight_update", map[string]any{"weight_version": "other"})
	if got, version := said(t, url); got == want || version != "other" {
		t.Errorf("version %s answers %q, the model's own weights too", version, got)
	}
	p.signal(syscall.SIGTERM)
	p.exit()
	p, url = startServer(t, append([]string{c.model, "--weights-cache", c.dir}, flags...)...)
	p.logs(areUsed, 2)
	ask("/sleep?level=2", nil)
	ask("/wake_up", nil)
	p.logs(areUsed, 4)
	if got, _ := said(t, url); got != want {
		t.Errorf("after sleep: answers %q, before %q", got, want)
	}
	ask("/scale_elastic?tp=1", nil)
	if got, _ := said(t, url); got != want {
		t.Errorf("one rank answers %q, two %q", got, want)
	}
	p.says(areStored)
	p.signal(syscall.SIGTERM)
	p.exit()
	all := c.files()
	if len(all) != 3 {
		t.Errorf("%d files are stored of two layouts with three shares", len(all))
	}
	for name, sum := range stored {
		if all[name] != sum {
			t.Errorf("%s was written", name)
		}
	}
	if got := c.answer(areUsed, 2, flags...); got != want {
		t.Errorf("the last start answers %q, the first %q", got, want)
	}
}

// TestWeightsCacheNodes starts two nodes twice: the folder is that of node 0's flag on each.
func TestWeightsCacheNodes(t *testing.T) {
	t.Parallel()
	cache := newCached(t)
	c := newCluster(t, "-tp", "2", "--nnodes", "2", cache.model)
	var first string
	for i, want := range []string{areStored, areUsed} {
		other := c.node("1").start()
		zero, url := ready(t, command(t, "", c.args("--port", "0", "--weights-cache",
			cache.dir)...))
		text, _ := said(t, url)
		zero.logs(want, 2)
		if i == 0 {
			first = text
		} else if text != first {
			t.Errorf("the first start answers %q, the second %q", first, text)
		}
		zero.signal(syscall.SIGTERM)
		zero.exit()
		other.exit()
		if n := len(cache.files()); n != 2 {
			t.Errorf("%d files are stored", n)
		}
	}
}
