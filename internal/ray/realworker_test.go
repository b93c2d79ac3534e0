package ray_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

func TestRealWorkerEnvironment(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		_, facts := spawn(t, c, placed(t, c, 1), 1)
		out := filepath.Join(t.TempDir(), "env")
		spec := ray.StartSpec{Path: "/bin/sh", Args: []string{"-c", `exec 3<&0; cat <&3 > "$OUT.stdin" & env > "$OUT.part"; ps -o pgid= -p $$ >> "$OUT.part"; mv "$OUT.part" "$OUT"; wait`},
			SetEnv:     map[string]string{"OUT": out, "HOME": "/mine", "TWICE": "set"},
			DefaultEnv: map[string]string{"PATH": "/nowhere", "NEW": "default", "TWICE": "default", "RAY_AUTH_TOKEN": "secret"},
			UnsetEnv:   []string{"CUDA_VISIBLE_DEVICES", "NOT_THERE"},
			Stdin:      []byte("invitation\x00\xff\n" + strings.Repeat("x", 1<<20))}
		// A pipe holds 64 KiB: the start must not wait until the worker has read the rest.
		if _, err := c.StartWorkers(within(t), []ray.StartSpec{spec}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the worker wrote its environment", func() bool {
			_, err := os.Stat(out)
			return err == nil
		})
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		for _, want := range []string{"HOME=/mine", "NEW=default", "TWICE=set", "PATH=" + os.Getenv("PATH"),
			fmt.Sprintf("EAGLERAY_PARENT_PID=%d", facts[0].PID)} {
			if !slices.Contains(lines, want) {
				t.Errorf("no %s in %q", want, lines)
			}
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "RAY_AUTH_") || strings.HasPrefix(line, "CUDA_VISIBLE_DEVICES=") {
				t.Errorf("%s is there", line)
			}
		}
		group, err := syscall.Getpgid(facts[0].PID)
		if err != nil || strings.TrimSpace(lines[len(lines)-1]) != fmt.Sprint(group) {
			t.Errorf("process group %s, the actor's %d, %v", lines[len(lines)-1], group, err)
		}
		eventually(t, "the worker has its input", func() bool {
			got, err := os.ReadFile(out + ".stdin")
			return err == nil && string(got) == string(spec.Stdin)
		})
		// The input stays open until the worker is told to end.
		if err := c.StopWorkers(within(t), []int{0}, hang); err != nil {
			t.Errorf("stop: %v", err)
		}
		if e := nextExit(t, c); e.Rank != 0 || e.Code == nil && e.Signal != "SIGTERM" {
			t.Errorf("exit %+v", e)
		}
	})
}

func TestRealStartErrors(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		spawn(t, c, placed(t, c, 2), 2)
		plain := filepath.Join(t.TempDir(), "plain")
		if err := os.WriteFile(plain, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := c.StartWorkers(within(t), []ray.StartSpec{{Rank: 0, Path: "/nonexistent"}, {Rank: 1, Path: plain}})
		if got := rankClass(t, err, 0); !strings.Contains(got, "FileNotFoundError") {
			t.Errorf("no file: %s in %v", got, err)
		}
		if got := rankClass(t, err, 1); !strings.Contains(got, "PermissionError") {
			t.Errorf("no permission: %s in %v", got, err)
		}
		// The same actors can still start something, one at a time.
		if _, err := c.StartWorkers(within(t), starts([]int{0, 1}, leashed, "-", leashedMark)); err != nil {
			t.Fatal(err)
		}
		_, err = c.StartWorkers(within(t), starts([]int{0}, "/bin/true"))
		if got := rankClass(t, err, 0); !strings.Contains(got, "RuntimeError") || !strings.Contains(err.Error(), "running already") {
			t.Errorf("a second worker: %v", err)
		}
		if facts, err := c.Facts(within(t), []int{0, 1}, ray.FactsRequest{}); err != nil || len(facts) != 2 {
			t.Errorf("facts beside a worker: %+v, %v", facts, err)
		}
	})
}

func TestRealExits(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		group := placed(t, c, 5)
		ranks, facts := spawn(t, c, group, 5)
		run := func(ranks []int, script string) []ray.Started {
			t.Helper()
			started, err := c.StartWorkers(within(t), starts(ranks, "/bin/sh", "-c", script))
			if err != nil {
				t.Fatal(err)
			}
			return started
		}
		run([]int{0}, "seq 30 >&2; exit 7")
		e := nextExit(t, c)
		if e.Rank != 0 || e.Code == nil || *e.Code != 7 || e.Signal != "" || e.Class != "" || len(e.Stderr) != 20 || e.Stderr[0] != "11" || e.Stderr[19] != "30" {
			t.Errorf("exit 7: %+v", e)
		}
		// Again under the same actor: nothing of the first is left.
		started := run([]int{0}, "echo once >&2; exec sleep 600")
		eventually(t, "it has said so and sleeps", func() bool {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", started[0].PID))
			return err == nil && strings.HasPrefix(string(args), "sleep\x00")
		})
		kill(t, started[0].PID)
		if e := nextExit(t, c); e.Rank != 0 || e.PID != started[0].PID || e.Code != nil || e.Signal != "SIGKILL" || !slices.Equal(e.Stderr, []string{"once"}) {
			t.Errorf("SIGKILL: %+v", e)
		}
		// One that ignores what it is asked is killed after the grace.
		run([]int{0}, `trap "" TERM; echo ready >&2; while :; do sleep 0.1; done`)
		if err := c.StopWorkers(within(t), []int{0}, 300*time.Millisecond); err != nil {
			t.Errorf("stop: %v", err)
		}
		if e := nextExit(t, c); e.Rank != 0 || e.Signal == "" {
			t.Errorf("stopped: %+v", e)
		}
		// The actor goes, and takes the worker along: its input ends.
		run(ranks[1:], "exec cat - "+leashedMark)
		kill(t, facts[1].PID)
		if e := nextExit(t, c); e.Rank != 1 || e.Code != nil || !strings.HasPrefix(e.Class, "Actor") || e.Reason == "" {
			t.Errorf("lost actor: %+v", e)
		}
		if err := syscall.Kill(facts[4].PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if e := nextExit(t, c); e.Rank != 4 || e.Code != nil && *e.Code != 0 || e.Code == nil && !strings.HasPrefix(e.Class, "Actor") {
			t.Errorf("actor that was asked to end: %+v", e)
		}
		// Killed on purpose is no news; the group's end is.
		if err := c.KillActors(within(t), []int{2}); err != nil {
			t.Fatal(err)
		}
		if err := c.RemoveGroup(within(t), group); err != nil {
			t.Fatal(err)
		}
		// Ray asks the actor to end first: either it tells of its worker's end, or Ray of the actor's.
		if e := nextExit(t, c); e.Rank != 3 || e.Signal == "" && (!strings.HasPrefix(e.Class, "Actor") || !strings.Contains(e.Reason, "placement group was removed")) {
			t.Errorf("removed group: %+v", e)
		}
		cl.NoneLeft(t, "ray::Worker")
		cl.NoneLeft(t, leashedMark)
	})
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// The end of the bridge ends everything, and later calls say why.
func TestRealBridgeKilled(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, watcher *ray.Client) {
		before := childrenOf(t, os.Getpid())
		c := start(t, cl.Ray, cl.Env)
		bridges := slices.DeleteFunc(childrenOf(t, os.Getpid()), func(pid int) bool { return slices.Contains(before, pid) })
		if len(bridges) != 1 {
			t.Fatalf("new children: %v", bridges)
		}
		if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address, NodeIP: cl.Nodes[0].IP}); err != nil {
			t.Fatal(err)
		}
		group := placed(t, c, 2)
		spawn(t, c, group, 2)
		if _, err := c.StartWorkers(within(t), starts([]int{0, 1}, leashed, "-", leashedMark)); err != nil {
			t.Fatal(err)
		}
		if _, err := watcher.AdoptGroup(within(t), group); err != nil {
			t.Fatal(err)
		}
		kill(t, bridges[0])
		if err := awaitGone(t, c); !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("gone: %v", err)
		}
		checkGone(t, cl, watcher, group)
		if err := c.Close(within(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// A bridge that is stopped says nothing and is declared gone; a test of ten seconds.
func TestRealBridgeFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		var bridge int
		for _, pid := range childrenOf(t, os.Getpid()) {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(args), "/proc/self/fd/") {
				bridge = pid
			}
		}
		if bridge == 0 {
			t.Fatal("no bridge among the children")
		}
		if err := syscall.Kill(bridge, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := awaitGone(t, c); !strings.Contains(err.Error(), "silent for") {
			t.Errorf("gone: %v", err)
		}
	})
}

func TestRealInstall(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		ranks, _ := spawn(t, c, placed(t, c, 3), 3)
		script := fmt.Sprintf("#!/bin/sh\necho %s %s >&2\nexit 3\n#", t.Name(), time.Now()) + strings.Repeat("x", 20<<20)
		file := filepath.Join(t.TempDir(), "binary")
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(script))
		digest := hex.EncodeToString(sum[:])
		if _, err := c.Install(within(t), ranks, file, strings.Repeat("0", 64)); class(err) != "ValueError" {
			t.Errorf("a wrong hash: %v", err)
		}
		facts, err := c.Facts(within(t), []int{0}, ray.FactsRequest{SHA256: digest, CacheHint: file})
		if err != nil || facts[0].HasBinary != "" {
			t.Errorf("a file that is not executable was offered: %+v, %v", facts, err)
		}
		installed, err := c.Install(within(t), ranks, file, digest)
		if err != nil || len(installed) != 3 {
			t.Fatalf("install: %+v, %v", installed, err)
		}
		again, err := c.Install(within(t), ranks, file, digest)
		if err != nil || len(again) != 3 || !again[0].Cached || !again[2].Cached || again[0].Path != installed[0].Path {
			t.Errorf("install again: %+v, %v", again, err)
		}
		path := installed[0].Path
		if !strings.HasPrefix(path, cl.Dir+"/home/.cache/eagleray/bin/") {
			t.Errorf("installed at %s", path)
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".partial") }) {
			t.Errorf("left in the cache: %v, %v", entries, err)
		}
		for _, want := range []string{path, file} {
			if err := os.Chmod(file, 0o755); err != nil {
				t.Fatal(err)
			}
			hint := ""
			if want == file {
				hint = file
			}
			if facts, err = c.Facts(within(t), []int{0}, ray.FactsRequest{SHA256: digest, CacheHint: hint}); err != nil || facts[0].HasBinary != want {
				t.Errorf("has %q, want %q: %v", facts[0].HasBinary, want, err)
			}
		}
		// One that was changed since is not trusted, and mended.
		if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 4\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if facts, err = c.Facts(within(t), []int{0}, ray.FactsRequest{SHA256: digest}); err != nil || facts[0].HasBinary != "" {
			t.Errorf("a changed file was offered: %+v, %v", facts, err)
		}
		if again, err = c.Install(within(t), []int{0}, file, digest); err != nil || again[0].Cached {
			t.Errorf("install over a changed file: %+v, %v", again, err)
		}
		if _, err := c.StartWorkers(within(t), starts([]int{0}, path)); err != nil {
			t.Fatal(err)
		}
		if e := nextExit(t, c); e.Code == nil || *e.Code != 3 || len(e.Stderr) != 1 || !strings.HasPrefix(e.Stderr[0], t.Name()) {
			t.Errorf("the installed file: %+v", e)
		}
	})
}

// The raylet crashes: the run reference says so within seconds, and the other rank is untouched.
func TestRealRayletKilled(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		extra := cl.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 1, Resources: map[string]float64{"doomed": 1}})
		c := join(t, cl)
		id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: []map[string]float64{{"doomed": 1}, {"GPU": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Group: id, Resources: map[string]float64{"doomed": 1}},
			{Rank: 1, Group: id, Bundle: 1, GPUs: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.StartWorkers(within(t), starts([]int{0, 1}, leashed, "-", leashedMark)); err != nil {
			t.Fatal(err)
		}
		cl.KillRaylet(t, extra)
		// Ray's part of the actor ends its child first, of which the actor may still tell.
		if e := nextExit(t, c); e.Rank != 0 || e.Signal != "SIGKILL" && (!strings.HasPrefix(e.Class, "Actor") || e.Reason == "") {
			t.Errorf("exit %+v", e)
		}
		if facts, err := c.Facts(within(t), []int{1}, ray.FactsRequest{}); err != nil || len(facts) != 1 {
			t.Errorf("the other rank: %+v, %v", facts, err)
		}
		eventually(t, "the node is dead for Ray", func() bool {
			nodes, err := c.Nodes(within(t))
			return err == nil && slices.ContainsFunc(nodes, func(n ray.Node) bool { return n.IP == extra.IP && !n.Alive && len(n.Free) == 0 })
		})
	})
}

// A silent host, noticed with fast settings.
func TestRealRayletFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of its own")
	}
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.StartCluster(t, r, raytest.Options{FastFailure: true, Nodes: []raytest.NodeSpec{{CPUs: 1}, {GPUs: 1}}})
		c := start(t, r, cl.Env)
		if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address, NodeIP: cl.Nodes[0].IP}); err != nil {
			t.Fatal(err)
		}
		spawn(t, c, placed(t, c, 1), 1)
		if _, err := c.StartWorkers(within(t), starts([]int{0}, leashed, "-", leashedMark)); err != nil {
			t.Fatal(err)
		}
		cl.FreezeRaylet(t, cl.Nodes[1])
		if e := nextExit(t, c); e.Rank != 0 || !strings.HasPrefix(e.Class, "Actor") {
			t.Errorf("exit %+v", e)
		}
	})
}
