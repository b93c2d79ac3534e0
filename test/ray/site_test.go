package ray_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// patience is for what takes moments on an idle machine. It only has to catch a hang.
const patience = 2 * time.Minute

// namespace is the Ray namespace of the observer and of the engines.
const namespace = "eagleray-test"

// site is a cluster with an observer.
type site struct {
	*raytest.Cluster
	observer *observer
}

// each runs f on the shared cluster of every installed Ray.
func each(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.Shared(t, r)
		f(t, &site{Cluster: c, observer: sharedObserver(t, c)})
	})
}

// head is the address of the head node.
func (s *site) head() string { return s.Nodes[0].IP }

// observer is a job of another driver.
type observer struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	// out reads from pipe, whose reads have a deadline.
	out    *bufio.Reader
	pipe   *os.File
	errors *tail
}

var observers struct {
	sync.Mutex
	byCluster map[*raytest.Cluster]*observer
}

// sharedObserver is the observer of a shared cluster; it ends with this process.
func sharedObserver(t *testing.T, c *raytest.Cluster) *observer {
	t.Helper()
	observers.Lock()
	defer observers.Unlock()
	if w := observers.byCluster[c]; w != nil {
		return w
	}
	w := startObserver(t, c)
	if observers.byCluster == nil {
		observers.byCluster = map[*raytest.Cluster]*observer{}
	}
	observers.byCluster[c] = w
	return w
}

func startObserver(t *testing.T, c *raytest.Cluster) *observer {
	t.Helper()
	script, err := filepath.Abs("testdata/observer.py")
	if err != nil {
		t.Fatal(err)
	}
	w := &observer{cmd: exec.Command(c.Ray.Python, "-u", script, c.Address, c.Nodes[0].IP,
		namespace), errors: &tail{}}
	w.cmd.Env, w.cmd.Stderr = c.Env, w.errors
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var theirs *os.File
	if w.pipe, theirs, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	w.cmd.Stdout, w.out = theirs, bufio.NewReader(w.pipe)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// end ends the observer and with it what it holds.
func (w *observer) end() {
	w.in.Close()
	// One that waits for a cluster that is gone does not see the end of its input.
	stuck := time.AfterFunc(patience, func() { _ = w.cmd.Process.Kill() })
	defer stuck.Stop()
	// How it ends is of no interest.
	_ = w.cmd.Wait()
	w.pipe.Close()
}

// do asks the observer; result may be nil.
func (w *observer) do(op string, args map[string]any, result any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	request := map[string]any{"op": op}
	for k, v := range args {
		request[k] = v
	}
	if err := json.NewEncoder(w.in).Encode(request); err != nil {
		return fmt.Errorf("the observer is gone: %w: %s", err, w.errors)
	}
	// Ray itself would wait for a cluster that is gone.
	if err := w.pipe.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the observer is gone: %w: %s", err, w.errors)
	}
	var answer struct {
		Result json.RawMessage
		Error  string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("observer, %s: %s", op, answer.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

func (w *observer) must(t testing.TB, op string, args map[string]any, result any) {
	t.Helper()
	if err := w.do(op, args, result); err != nil {
		t.Fatal(err)
	}
}

// bundles are n bundles of one logical GPU.
func bundles(n int) []map[string]float64 {
	return slices.Repeat([]map[string]float64{{"GPU": 1}},
		n)
}

// group makes a placement group, which is removed at the end of the test.
func (s *site) group(t testing.TB, name string, of []map[string]float64) (id string) {
	t.Helper()
	return s.place(t, map[string]any{"bundles": of, "name": name})
}

func (s *site) place(t testing.TB, group map[string]any) (id string) {
	t.Helper()
	s.observer.must(t, "group", group, &id)
	t.Cleanup(func() {
		if err := s.observer.do("remove", map[string]any{"id": id}, nil); err != nil {
			t.Error(err)
		}
	})
	return id
}

type groupState struct {
	ID, Name, State string
	Nodes           []string
}

func (s *site) groups(t testing.TB) (all []groupState) {
	t.Helper()
	s.observer.must(t, "groups", nil, &all)
	return all
}

// find returns the group with the id.
func (s *site) find(t testing.TB, id string) groupState {
	t.Helper()
	all := s.groups(t)
	i := slices.IndexFunc(all, func(g groupState) bool { return g.ID == id })
	if i < 0 {
		t.Fatalf("no group %s among %+v", id, all)
	}
	return all[i]
}

type actorState struct {
	Name, State string
	PID         int
}

func (s *site) actors(t testing.TB) (all []actorState) {
	t.Helper()
	s.observer.must(t, "actors", nil, &all)
	return all
}

// ours are the names of live actors of engines.
func (s *site) ours(t testing.TB) (names []string) {
	t.Helper()
	for _, a := range s.actors(t) {
		if a.State != "DEAD" && strings.HasPrefix(a.Name, "eagleray_") {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

// cleanTime is how long everything may take to go; five seconds are wanted and reported, but
// machines are shared.
const cleanTime = 20 * time.Second

// left is what there is of engines on the cluster: actors, groups, processes of workers and
// actors, bridges.
func (s *site) left(t testing.TB) (found []string) {
	t.Helper()
	for _, name := range s.ours(t) {
		found = append(found, "actor "+name)
	}
	for _, g := range s.groups(t) {
		if g.State != "REMOVED" && strings.HasPrefix(g.Name, "eagleray_") {
			found = append(found, "group "+g.Name+" "+g.State)
		}
	}
	for _, p := range s.Processes() {
		if line := strings.Join(p.Args, " "); strings.Contains(line, "--actor") ||
			strings.HasPrefix(line, "ray::Worker") {
			found = append(found, fmt.Sprintf("process %d: %s", p.PID, line))
		}
	}
	for _, pid := range bridges(os.Getpid()) {
		found = append(found, fmt.Sprintf("bridge %d", pid))
	}
	// The pattern is well formed. Memory of ours has no name at all.
	named, _ := filepath.Glob("/dev/shm/*eagleray*")
	return append(found, named...)
}

// clean checks that soon nothing of any engine is left on the cluster.
func (s *site) clean(t testing.TB) {
	t.Helper()
	begun := time.Now()
	for {
		found := s.left(t)
		took := time.Since(begun)
		if len(found) == 0 {
			if took > 5*time.Second {
				t.Logf("clean only after %v", took)
			}
			return
		}
		if took > cleanTime {
			t.Fatalf("left after %v:\n%s", took, strings.Join(found, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// bridges are the bridges to Ray of a driver.
func bridges(driver int) (pids []int) {
	for _, pid := range children(driver) {
		if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
			strings.Contains(string(args), "/proc/self/fd/4\x003") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children are the living children of a process.
func children(parent int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if state, ppid, ok := stat(pid); ok && ppid == parent && state != "Z" && state != "X" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat is a process's state and its parent; false when it has ended.
func stat(pid int) (state string, parent int, ok bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}

// gone tells whether a process has ended; one that is dead and not yet reaped has.
func gone(pid int) bool {
	state, _, ok := stat(pid)
	return !ok || state == "Z" || state == "X"
}

// parentOf is the process that started another: the actor of a worker, the raylet of an actor.
func parentOf(t testing.TB, pid int) int {
	t.Helper()
	_, parent, ok := stat(pid)
	if !ok || parent <= 1 {
		t.Fatalf("process %d has no parent to speak of", pid)
	}
	return parent
}

func kill(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Errorf("send %v to pid %d: %v", s, pid, err)
	}
}

// eventually waits until check is true. It looks again after a small part of what it has waited:
// what is waited for computes meanwhile, and some looks ask it.
func eventually(t testing.TB, what string, check func() bool) time.Duration {
	t.Helper()
	const soonest, latest, part = 2 * time.Millisecond, 50 * time.Millisecond, 32
	begun := time.Now()
	for !check() {
		waited := time.Since(begun)
		if waited > patience {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(min(max(soonest, waited/part), latest))
	}
	return time.Since(begun)
}

// within bounds an operation.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// tail keeps what was written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer and never fails.
func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}

// line is the first line with the text, "" for none.
func (b *tail) line(text string) string {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, text) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// environ is the environment of a running process.
func environ(t testing.TB, pid int) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for kv := range strings.SplitSeq(string(raw), "\x00") {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	return env
}
