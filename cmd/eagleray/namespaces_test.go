package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// namespace is a machine as far as the network goes: addresses, ports and abstract unix sockets of
// its own. It is gone when its holder is.
type namespace struct {
	t      *testing.T
	holder *exec.Cmd
	// inside is the process of one that has processes of its own, "" for one that has not.
	inside string
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{t: t, holder: exec.Command("sleep", "infinity")}
	n.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if err := n.holder.Start(); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = n.holder.Process.Kill()
		_ = n.holder.Wait()
	})
	return n
}

func (n *namespace) pid() string {
	if n.inside != "" {
		return n.inside
	}
	return strconv.Itoa(n.holder.Process.Pid)
}

// move has a command run in the namespace.
func (n *namespace) move(c *exec.Cmd) {
	path, err := exec.LookPath("nsenter")
	if err != nil {
		n.t.Skip(err)
	}
	args := []string{path, "--net=/proc/" + n.pid() + "/ns/net"}
	if n.inside != "" {
		args = append(args, "--mount=/proc/"+n.inside+"/ns/mnt", "--pid=/proc/"+n.inside+"/ns/pid")
	}
	c.Args = append(append(args, c.Path), c.Args[1:]...)
	c.Path = path
}

// do runs a command in the namespace and returns what it printed.
func (n *namespace) do(command ...string) (string, error) {
	c := exec.Command(command[0], command[1:]...)
	n.move(c)
	out, err := c.CombinedOutput()
	return string(out), err
}

func (n *namespace) ip(command string) {
	n.t.Helper()
	if out, err := n.do(append([]string{"ip"}, strings.Fields(command)...)...); err != nil {
		n.t.Skipf("ip %s: %v: %s", command, err, out)
	}
}

// twoMachines are joined by one cable, at 10.0.0.1 and 10.0.0.2.
func twoMachines(t *testing.T) (a, b *namespace) { return namespaces(t, newNamespace) }

// namespaces are joined in this way, the second of which another function makes.
func namespaces(t *testing.T, second func(t *testing.T) *namespace) (a, b *namespace) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces are for root")
	}
	for _, tool := range []string{"ip", "nsenter", "curl", "sleep"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	a, b = newNamespace(t), second(t)
	a.ip("link add eth0 type veth peer name eth0 netns " + b.pid())
	a.ip("addr add 10.0.0.1/24 dev eth0")
	b.ip("addr add 10.0.0.2/24 dev eth0")
	for _, n := range []*namespace{a, b} {
		n.ip("link set lo up")
		n.ip("link set eth0 up")
	}
	return a, b
}

// drawn is a completion whose tokens are drawn, with their log-probabilities.
const drawn = `{"prompt":"package main","max_tokens":24,"temperature":0.9,"seed":7,"logprobs":3}`

// choices are an answer's, which are the same for the same bits.
func choices(t *testing.T, answer string) string {
	t.Helper()
	var c struct{ Choices json.RawMessage }
	if err := json.Unmarshal([]byte(answer), &c); err != nil || len(c.Choices) < 100 {
		t.Fatalf("answer %q, %v", answer, err)
	}
	return string(c.Choices)
}

// onePiece is what one process answers.
func onePiece(t *testing.T) string {
	t.Helper()
	inOnePiece.Do(func() {
		p, url := startServer(t)
		code, answer := posted(t, url+"/v1/completions", drawn)
		if code != http.StatusOK {
			t.Fatalf("%d %s", code, answer)
		}
		drawnAlone = choices(t, answer)
		p.signal(syscall.SIGTERM)
		p.exit()
	})
	if drawnAlone == "" {
		t.Fatal("one process has no answer")
	}
	return drawnAlone
}

var (
	inOnePiece sync.Once
	drawnAlone string
)

// across starts node 0 on one of two machines, which serves at url, and the other node on the other
// one.
func (c *cluster) across(a, b *namespace) (zero, other *program, url string) {
	c.t.Helper()
	c.address, c.port = "10.0.0.1", "29501"
	zero, other = c.zero(), c.node("1")
	a.move(zero.cmd)
	b.move(other.cmd)
	other.start()
	_, url = ready(c.t, zero)
	return zero, other, url
}

// TestTwoMachines serves with the ranks of two machines, which share nothing but a cable, and wants
// the tokens and the bits of log-probabilities of one process. At last the cable is cut: both sides
// end, and name who is silent.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	want := onePiece(t)
	layouts := []string{"-tp 4", "-tp 2 -pcp 2", "-tp 2 -dp 2", "-tp 2 -pp 2"}
	if testing.Short() {
		layouts = layouts[len(layouts)-1:]
	}
	for i, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			a, b := twoMachines(t)
			c := newCluster(t, append(strings.Fields(layout), "--nnodes", "2", "--on-failure",
				"exit")...)
			zero, other, url := c.across(a, b)
			other.says("serving")
			answer, err := a.do("curl", "-sS", url+"/v1/completions", "-H",
				"Content-Type: application/json", "-d", drawn)
			if err != nil {
				t.Fatalf("%v: %s", err, answer)
			}
			if got := choices(t, answer); got != want {
				t.Errorf("two machines answer\n%s\none process\n%s", got, want)
			}
			if cut := i == len(layouts)-1 && !testing.Short(); !cut {
				zero.stops()
				other.ends(0, "ended: node 0 has ended")
				return
			}
			b.ip("link set eth0 down")
			started := time.Now()
			zero.ends(exitError, " on node 1 at 10.0.0.2 (pid ")
			other.ends(exitError, "node 0 at 10.0.0.1:29501 is gone: it is silent for 8s")
			t.Logf("both ended %v after the cut: %s", time.Since(started), zero.err.String())
		})
	}
}

// TestQuickstartTwoMachines runs the lines for two machines as they are, on two machines with these
// addresses, and wants to read what they are said to log.
func TestQuickstartTwoMachines(t *testing.T) {
	t.Parallel()
	a, b := twoMachines(t)
	for _, tool := range []string{"bash", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	document, dir := quickstart(t), t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, "eagleray")); err != nil {
		t.Fatal(err)
	}
	shell := func(n *namespace, before, block string) *program {
		p := command(t, "")
		p.cmd = exec.Command("bash", "-e", "-c", before+fenced(t, document, "sh "+block))
		p.cmd.Dir, p.shown = dir, true
		p.cmd.Env = append(os.Environ(), asProgram+"=1", "EAGLERAY_LOG_FORMAT=text",
			"EAGLERAY_KV_CACHE_MEMORY_BYTES=64M", "PATH="+dir+":"+os.Getenv("PATH"))
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		n.move(p.cmd)
		return p.start()
	}
	if code := shell(a, "", "secret").exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	second := shell(b, "exec ", "second")
	second.says("waiting for node 0")
	first := shell(a, "exec ", "first")
	first.says("ready")
	asked := shell(a, "", "ask")
	if code := asked.exit(); code != 0 ||
		!strings.Contains(asked.out.String(), "Open opens the named file for reading.") {
		t.Errorf("exit code %d: %s", code, asked.out.String())
	}
	first.says("request")
	first.signal(syscall.SIGINT)
	for block, p := range map[string]*program{"first": first, "second": second} {
		if code := p.exit(); code != 0 {
			t.Errorf("%s: exit code %d", block, code)
		}
		at := 0
		for line := range strings.Lines(fenced(t, document, "text "+block)) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), "INFO  ")
			message := strings.TrimSpace(withoutValues.ReplaceAllString(line, ""))
			found := strings.Index(p.err.String()[at:], message)
			if message == "" || found < 0 {
				t.Errorf("%s: %q is not logged, or not there", block, message)
				continue
			}
			at += found
		}
	}
}

// withoutValues takes the values from a line of the log: from the first key on, or from what is
// left out.
var withoutValues = regexp.MustCompile(`( \w+=| within| …).*`)

// mixture are flags for a mixture of experts, which is asked mixtureRequests requests.
var mixture = []string{"../../testdata/models/qwen3moe-tiny", "--skip-tokenizer-init",
	"--served-model-name", "mixture"}

const mixtureRequests = 6

// mixtureRequest is one whose tokens are drawn, with their log-probabilities.
func mixtureRequest(i int) string {
	return fmt.Sprintf(`{"prompt":[%d,5,9,2],"max_tokens":40,"temperature":0.9,"seed":%d,`+
		`"logprobs":3,"ignore_eos":true,"return_tokens_as_token_ids":true}`, 10+i, i)
}

// ofMixture is what one process with flags for the mixture answers.
func ofMixture(t *testing.T, flags ...string) (want [mixtureRequests]string) {
	t.Helper()
	p, url := startServer(t, flags...)
	for i := range want {
		_, answer := posted(t, url+"/v1/completions", mixtureRequest(i))
		want[i] = choices(t, answer)
	}
	p.signal(syscall.SIGTERM)
	p.exit()
	return want
}

// askMixture is what a server answers on a machine.
func askMixture(n *namespace, url string, i int) string {
	answer, _ := n.do("curl", "-sS", url+"/v1/completions", "-H", "Content-Type: application/json",
		"-d", mixtureRequest(i))
	return answer
}

// TestPlacesOnTwoMachines serves a mixture of experts in two places, each on a machine of its own,
// where vLLM's data parallel ranks hang, for they take each other for neighbours in shared memory
// (vLLM #43420). Requests that come together, so to both places, are answered as by one process.
// Rows of quantised experts travel narrow.
func TestPlacesOnTwoMachines(t *testing.T) {
	t.Parallel()
	layouts := [][]string{
		{"-dp 2 -ep"},
		{"-dp 2 -ep", "--quantization", "int8"},
		{"-dp 4 -ep"},
		{"-dp 2 -tp 2 -ep --enable-eplb --num-redundant-experts 4 " +
			`--eplb-config {"step_interval":20}`},
	}
	if testing.Short() {
		layouts = layouts[:2]
	}
	for _, layout := range layouts {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			layout, model := strings.Fields(layout[0]), append(layout[1:], mixture...)
			want := ofMixture(t, model...)
			a, b := twoMachines(t)
			c := newCluster(t, append(append(layout, "--nnodes", "2"), model...)...)
			zero, other, url := c.across(a, b)
			other.says("serving")
			var got [mixtureRequests]string
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() { got[i] = askMixture(a, url, i) })
			}
			wg.Wait()
			for i := range got {
				if g := choices(t, got[i]); g != want[i] {
					t.Errorf("request %d: two machines answer\n%s\none process\n%s", i, g, want[i])
				}
			}
			zero.stops()
			other.ends(0, "ended: node 0 has ended")
		})
	}
}

// TestShrinkOnTwoMachines kills all of one of two machines under load: the other one serves on with
// the ranks that it has, and with all again when the first is back. No request is lost, and none is
// answered otherwise than by one process.
func TestShrinkOnTwoMachines(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits for a machine")
	}
	want := ofMixture(t, mixture...)
	for _, c := range []struct{ flags, all, fewer string }{
		{"-dp 2 -ep", `"DP 2 × EP" ranks=2`, `"TP 1 × EP" ranks=1 wanted=2`},
		{"-dp 2 -tp 2 -ep", `"DP 2 × TP 2 × EP" ranks=4`, `"TP 2 × EP" ranks=2 wanted=4`},
		{"-tp 4", `"TP 4" ranks=4`, `"TP 2" ranks=2 wanted=4`},
	} {
		t.Run(c.flags, func(t *testing.T) {
			t.Parallel()
			a, b := twoMachines(t)
			n := newCluster(t, append(append(strings.Fields(c.flags), "--nnodes", "2",
				"--on-failure", "shrink"), mixture...)...)
			zero, other, url := n.across(a, b)
			zero.shown = true
			other.says("serving")
			var clients sync.WaitGroup
			var answered atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			end := func() {
				cancel()
				clients.Wait()
			}
			t.Cleanup(end)
			for i, want := range want {
				clients.Go(func() {
					for ctx.Err() == nil {
						if got := askMixture(a, url, i); !strings.Contains(got, want) {
							t.Errorf("request %d: %s\none process answers\n%s", i, got, want)
							return
						}
						answered.Add(1)
					}
				})
			}
			more := func() {
				t.Helper()
				from := answered.Load()
				eventually(t, "answers", func() bool { return answered.Load() > from+20 })
			}
			more()
			other.signal(syscall.SIGKILL)
			zero.says("serving with fewer ranks")
			zero.says("layout=" + c.fewer + ` missing="node 1"`)
			more()
			back := func() *program {
				p := n.node("1")
				b.move(p.cmd)
				return p.start()
			}
			again := back()
			eventually(t, "all ranks", func() bool {
				select {
				case <-again.done: // it was taken for gone, as where a machine is too busy
					again = back()
				default:
				}
				return strings.Contains(zero.err.String(), "serving with all ranks again")
			})
			zero.says("layout=" + c.all)
			again.says("serving")
			more()
			end()
			t.Logf("%d answers", answered.Load())
			zero.stops()
			again.ends(0, "ended: node 0 has ended")
		})
	}
}
