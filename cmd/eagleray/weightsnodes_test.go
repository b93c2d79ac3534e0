package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin/builtintest"
)

// newMachine is a namespace that has processes of its own, too: none there can look at those of
// others.
func newMachine(t *testing.T) *namespace {
	t.Helper()
	path, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	outer := exec.Command(path, "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep",
		"infinity")
	outer.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := outer.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- outer.Wait() }()
	t.Cleanup(func() {
		_ = outer.Process.Kill()
		<-ended
	})
	n := &namespace{t: t, holder: outer}
	eventually(t, "another machine", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Skipf("no machine can be made here: %v", err)
		default:
		}
		at := fmt.Sprintf("/proc/%d/task/%d/children", outer.Process.Pid, outer.Process.Pid)
		children, _ := os.ReadFile(at)
		for _, pid := range strings.Fields(string(children)) {
			if name, _ := os.ReadFile("/proc/" + pid + "/comm"); string(name) == "sleep\n" {
				n.inside = pid
			}
		}
		return n.inside != ""
	})
	return n
}

// sentBytes is how much has gone through the cable of a machine.
func (n *namespace) sentBytes() int64 {
	n.t.Helper()
	text, err := n.do("cat", "/proc/net/dev")
	counts := regexp.MustCompile(`eth0:\s*(?:\d+\s+){8}(\d+)`).FindStringSubmatch(text)
	if err != nil || counts == nil {
		n.t.Fatalf("%v: %s", err, text)
	}
	sent, err := strconv.ParseInt(counts[1], 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return sent
}

// TestWeightsTwoMachines updates the weights of engines on two machines. The one that has not the
// driver is sent the bytes once for both of its ranks, and all compute with them.
func TestWeightsTwoMachines(t *testing.T) {
	t.Parallel()
	path := builtintest.OtherWeights(t, "../../internal/rank/builtin")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	a, b := namespaces(t, newMachine)
	c := newCluster(t, "-tp", "2", "-dp", "2", "--nnodes", "2", "--enable-rlhf",
		"--allowed-local-weights", os.TempDir())
	zero, other, url := c.across(a, b)
	_, one := startServer(t, "--enable-rlhf", "--allowed-local-weights", os.TempDir())
	steps := []struct{ path, body string }{{"/init_weight_transfer_engine", "{}"},
		{"/start_weight_update", "{}"},
		{"/update_weights", fmt.Sprintf(`{"update_info":{"path":%q}}`, path)},
		{"/finish_weight_update", "{}"}}
	for _, s := range steps {
		if code, answer := posted(t, one+s.path, s.body); code != 200 {
			t.Fatalf("%s: %d %s", s.path, code, answer)
		}
	}
	_, answer := posted(t, one+"/v1/completions", drawn)
	want := choices(t, answer)
	post := func(path, body string) string {
		t.Helper()
		answer, err := a.do("curl", "-sS", "--fail-with-body", url+path, "-H",
			"Content-Type: application/json", "-d", body)
		if err != nil {
			t.Fatalf("%s: %v %s", path, err, answer)
		}
		return answer
	}
	rounds := 3
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		before := a.sentBytes()
		for _, s := range steps {
			post(s.path, s.body)
		}
		sent := float64(a.sentBytes()-before) / float64(info.Size())
		if sent < 0.9 || sent > 1.4 {
			t.Errorf("round %d: the bytes were sent %.2f times", round, sent)
		}
		for range 4 { // of both engines
			if got := choices(t, post("/v1/completions", drawn)); got != want {
				t.Errorf("round %d: two machines answer\n%s\none process\n%s", round, got, want)
			}
		}
	}
	zero.stops()
	other.says("ended: node 0 has ended")
}
