// Package loopback runs clusters of Ray with several nodes on loopback addresses of this machine:
// for tests, and for the tool that injects faults.
package loopback

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// reaper runs the cluster's processes, and ends them when this process ends.
//
//go:embed reaper.py
var reaper string

// Ray is one installation.
type Ray struct {
	// Version is "" when it is not known.
	Version string
	// Python is the environment's interpreter.
	Python string
}

// NodeSpec are the resources of one node. GPUs are logical: Ray hands out numbers and looks for
// no device.
type NodeSpec struct {
	CPUs, GPUs float64
	Resources  map[string]float64
}

// Options describe a cluster.
type Options struct {
	// Nodes are the nodes, the head first.
	Nodes []NodeSpec
	// Dashboard is whether the REST API is wanted.
	Dashboard bool
	// Env is added to the environment of every node ("NAME=value").
	Env []string
	// Token turns token authentication on (Ray 2.52 and later).
	Token string
	// FastFailure makes Ray notice a silent node within five seconds instead of a minute.
	FastFailure bool
}

// Node is one node of a cluster.
type Node struct {
	// IP is its loopback address.
	IP string
	// Raylet is the pid of its raylet.
	Raylet int
}

// Cluster is a running cluster.
type Cluster struct {
	Ray *Ray
	// Address is the GCS address; Dashboard is "host:port" or empty.
	Address, Dashboard string
	// Env is the environment for a driver of the cluster: this process's without what concerns
	// Ray, with a home of the cluster's own, and with the token.
	Env []string
	// Dir is removed with the cluster.
	Dir string

	options Options
	nodeEnv []string
	subnet  string

	mu      sync.Mutex
	Nodes   []*Node
	count   int
	reaper  *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Reader
}

// attempts is how often a cluster, or a node that joins one, may fail to start: on a busy machine
// Ray gives up on itself, and ports that were free a moment ago may not be any more.
const attempts = 3

// Start starts a cluster. Stop ends it, and so does the end of this process.
func Start(r *Ray, options Options) (*Cluster, error) {
	var failures []error
	for range attempts {
		c, err := tryStart(r, options)
		if err == nil {
			return c, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func tryStart(r *Ray, options Options) (*Cluster, error) {
	// Short, because Ray's unix sockets below it have long names and 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "er")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Ray: r, Dir: dir, options: options, subnet: subnet()}
	if err := c.startReaper(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := c.startNodes(); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) startReaper() error {
	home := filepath.Join(c.Dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	c.reaper = exec.Command(c.Ray.Python, "-c", reaper, c.Dir)
	c.reaper.Stderr = os.Stderr
	// Not in the terminal's group: it ends by the end of its input, and then has work to do.
	c.reaper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.orders, err = c.reaper.StdinPipe(); err != nil {
		return err
	}
	answers, err := c.reaper.StdoutPipe()
	if err != nil {
		return err
	}
	c.answers = bufio.NewReader(answers)
	base := append(PlainEnv(), "HOME="+home, "RAY_USAGE_STATS_ENABLED=0")
	if c.options.Token == "" {
		base = append(base, "RAY_AUTH_MODE=disabled")
	} else {
		base = append(base, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN="+c.options.Token)
	}
	c.Env = base
	c.nodeEnv = append(base[:len(base):len(base)], "RAY_worker_niceness=0",
		"RAY_worker_oom_score_adjustment=0",
		"RAY_memory_monitor_refresh_ms=0", "RAY_DEDUP_LOGS=0", "RAY_raylet_start_wait_time_s=120")
	if c.options.FastFailure {
		c.nodeEnv = append(c.nodeEnv, "RAY_health_check_initial_delay_ms=1000",
			"RAY_health_check_period_ms=500",
			"RAY_health_check_timeout_ms=1000", "RAY_health_check_failure_threshold=3")
	}
	c.nodeEnv = append(c.nodeEnv, c.options.Env...)
	return c.reaper.Start()
}

// PlainEnv is this process's environment without what Ray, its workers or a virtual environment
// left there.
func PlainEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "RAY_") && !strings.HasPrefix(kv, "HOME=") &&
			!strings.HasPrefix(kv, "XDG_CACHE_HOME=") &&
			!strings.HasPrefix(kv, "VIRTUAL_ENV=") &&
			!strings.HasPrefix(kv, "CUDA_VISIBLE_DEVICES=") {
			env = append(env, kv)
		}
	}
	return env
}

var clusters struct {
	sync.Mutex
	count int
}

// subnet returns the first three bytes of loopback addresses that no other cluster of this
// machine is likely to have.
func subnet() string {
	clusters.Lock()
	defer clusters.Unlock()
	clusters.count++
	n := os.Getpid()*7 + clusters.count
	return fmt.Sprintf("127.%d.%d.", 1+n/250%250, 1+n%250)
}

func (c *Cluster) startNodes() error {
	// One after another: of two that join at once, one fails.
	for i, spec := range c.options.Nodes {
		if i == 0 {
			if err := c.startHead(spec); err != nil {
				return err
			}
			continue
		}
		if _, err := c.Join(spec); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startHead(spec NodeSpec) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	ip := c.nextIP()
	c.Address = fmt.Sprintf("%s:%d", ip, ports[0])
	args := []string{"--head", fmt.Sprintf("--port=%d", ports[0]),
		fmt.Sprintf("--ray-client-server-port=%d", ports[1]),
		"--temp-dir=" + c.Dir, fmt.Sprintf("--include-dashboard=%v", c.options.Dashboard),
		"--dashboard-host=127.0.0.1",
		fmt.Sprintf("--dashboard-port=%d", ports[2])}
	if c.options.Dashboard {
		c.Dashboard = fmt.Sprintf("127.0.0.1:%d", ports[2])
	}
	_, err = c.startNode(ip, spec, args)
	return err
}

// Join starts one more node.
func (c *Cluster) Join(spec NodeSpec) (*Node, error) {
	args := []string{"--address=" + c.Address}
	if v := c.Ray.Version; v != "" && v != "2.35.0" {
		// Each node would tell the same lines of the one log folder; 2.35.0 has no such option.
		args = append(args, "--include-log-monitor=false")
	}
	var failures []error
	for range attempts {
		n, err := c.startNode(c.nextIP(), spec, args)
		if err == nil {
			return n, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func (c *Cluster) nextIP() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	return c.subnet + strconv.Itoa(1+c.count)
}

func (c *Cluster) startNode(ip string, spec NodeSpec, args []string) (*Node, error) {
	resources, err := json.Marshal(spec.Resources)
	if err != nil {
		return nil, err
	}
	argv := append([]string{c.Ray.Python, filepath.Join(filepath.Dir(c.Ray.Python), "ray"),
		"start"}, args...)
	argv = append(argv, "--node-ip-address="+ip, fmt.Sprintf("--num-cpus=%g", spec.CPUs),
		fmt.Sprintf("--num-gpus=%g", spec.GPUs),
		"--object-store-memory=80000000", "--dashboard-agent-listen-port=0", "--min-worker-port=0",
		"--max-worker-port=0",
		"--disable-usage-stats")
	if spec.Resources != nil {
		argv = append(argv, "--resources="+string(resources))
	}
	if err := c.run(argv, c.nodeEnv); err != nil {
		return nil, fmt.Errorf("ray start of %s: %w", ip, err)
	}
	for _, p := range c.Processes() {
		if filepath.Base(p.Args[0]) == "raylet" &&
			strings.Contains(strings.Join(p.Args, " "), "--node_ip_address="+ip+" ") {
			n := &Node{IP: ip, Raylet: p.PID}
			c.mu.Lock()
			c.Nodes = append(c.Nodes, n)
			c.mu.Unlock()
			return n, nil
		}
	}
	return nil, fmt.Errorf("ray start of %s left no raylet", ip)
}

// Run runs a command in the cluster's care with the driver's environment, and waits for it. What
// it leaves behind ends with the cluster.
func (c *Cluster) Run(argv []string) error { return c.run(argv, c.Env) }

func (c *Cluster) run(argv, env []string) error {
	order := struct {
		Argv []string          `json:"argv"`
		Env  map[string]string `json:"env"`
	}{argv, map[string]string{}}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		order.Env[name] = value
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := json.NewEncoder(c.orders).Encode(order); err != nil {
		return fmt.Errorf("the cluster's reaper is gone: %w", err)
	}
	line, err := c.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the cluster's reaper is gone: %w", err)
	}
	var answer struct {
		Code   int    `json:"code"`
		Output string `json:"output"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return err
	}
	if answer.Code != 0 {
		return fmt.Errorf("exit status %d: %s", answer.Code, answer.Output)
	}
	return nil
}

// Remove removes a node, which is about to end, from the list.
func (c *Cluster) Remove(n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.Nodes {
		if other == n {
			c.Nodes = append(c.Nodes[:i:i], c.Nodes[i+1:]...)
			return
		}
	}
}

// stopTime is how long the reaper may need to end everything.
const stopTime = 30 * time.Second

// Stop ends all processes, checks that none is left, and removes the folder.
func (c *Cluster) Stop() error {
	before := c.Processes()
	c.orders.Close()
	done := make(chan error, 1)
	go func() { done <- c.reaper.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-time.After(stopTime):
		// Its children become orphans, and are reported below.
		_ = c.reaper.Process.Kill()
		err = errors.Join(<-done, errors.New("the cluster's reaper did not end"))
	}
	for _, p := range before {
		if now, readErr := readProcess(p.PID); readErr == nil && now.start == p.start &&
			!now.zombie {
			err = errors.Join(err, fmt.Errorf("process %d is left: %s", p.PID,
				strings.Join(p.Args, " ")))
		}
	}
	if _, statErr := os.Stat(c.Dir); !errors.Is(statErr, os.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("folder %s is left", c.Dir))
	}
	return err
}

// freePorts finds n ports that are free, below those that the kernel gives to outgoing
// connections.
func freePorts(n int) ([]int, error) {
	const lowest, highest = 12000, 32000
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries == 1000 {
			return nil, fmt.Errorf("no free ports from %d to %d", lowest, highest)
		}
		port := lowest + rand.IntN(highest-lowest)
		l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
		if err != nil {
			continue
		}
		// It stays taken until all are found, so that none comes twice.
		defer l.Close()
		ports = append(ports, port)
	}
	return ports, nil
}
