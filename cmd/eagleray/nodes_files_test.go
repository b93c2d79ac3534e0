package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin/builtintest"
)

// pidOfRank finds the process of a headless node's only rank in what the node logs.
var pidOfRank = regexp.MustCompile(`msg="started ranks".* pids=(\d+)`)

// TestNodesKeepTheModel replaces the model's files under a server on two machines that see nothing
// of each other's processes, and kills the rank that the headless one runs: the next one loads what
// the others have. A headless node that comes after the change is refused by what differs.
func TestNodesKeepTheModel(t *testing.T) {
	t.Parallel()
	a, b := namespaces(t, newMachine)
	dir := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(dir, os.DirFS("../../testdata/models/go-std-tiny")); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, dir, "-tp", "2", "--nnodes", "2")
	_, other, url := c.across(a, b)
	ask := func() string {
		t.Helper()
		answer, err := a.do("curl", "-sS", "--fail-with-body", url+"/v1/completions",
			"-H", "Content-Type: application/json", "-d", drawn)
		if err != nil {
			t.Fatalf("%v %s", err, answer)
		}
		return choices(t, answer)
	}
	want := ask()
	weights := builtintest.OtherWeights(t, "../../internal/rank/builtin")
	if err := os.Rename(weights, filepath.Join(dir, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		before := pidOfRank.FindAllStringSubmatch(other.err.String(), -1)
		pid := before[len(before)-1][1]
		if out, err := b.do("kill", "-9", pid); err != nil {
			t.Fatalf("kill %s: %v %s", pid, err, out)
		}
		if got := ask(); got != want {
			t.Errorf("round %d:\n%s\nbefore\n%s", round, got, want)
		}
		eventually(t, "another rank", func() bool {
			return len(pidOfRank.FindAllString(other.err.String(), -1)) > len(before)
		})
	}
	late := c.node("1")
	b.move(late.cmd)
	late.start()
	late.says("refuses this node")
	if said := late.err.String(); !strings.Contains(said, "samples of its weights") {
		t.Errorf("%s", said)
	}
	late.exit()
}
