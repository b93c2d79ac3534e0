// Package raytest runs tests on real Ray: on every version that is installed beside the repository, with clusters of
// several nodes on loopback addresses of this machine.
//
// A test binary that uses it has func TestMain(m *testing.M) { raytest.Main(m) }.
package raytest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Ray is one installation.
type Ray struct {
	// Version is Ray's, from the name of the environment's folder.
	Version string
	// Python is the environment's interpreter.
	Python string
}

// installations returns the environments ray-VERSION of $EAGLERAY_RAY_VENVS, else of .venv in the repository.
func installations() ([]*Ray, string) {
	dir := os.Getenv("EAGLERAY_RAY_VENVS")
	if dir == "" {
		_, self, _, _ := runtime.Caller(0)
		dir = filepath.Join(filepath.Dir(self), "..", "..", "..", ".venv")
	}
	// The pattern is well formed.
	found, _ := filepath.Glob(filepath.Join(dir, "ray-*", "bin", "ray"))
	var all []*Ray
	for _, script := range found {
		bin := filepath.Dir(script)
		version := strings.TrimPrefix(filepath.Base(filepath.Dir(bin)), "ray-")
		all = append(all, &Ray{Version: version, Python: filepath.Join(bin, "python")})
	}
	return all, dir
}

// Each runs f as one subtest for each installed Ray. Without one the test is skipped with what to do about it.
func Each(t *testing.T, f func(t *testing.T, r *Ray)) {
	t.Helper()
	all, dir := installations()
	if len(all) == 0 {
		t.Skipf("no Ray in %s: make one with scripts/ray-venv.sh, or name a folder with EAGLERAY_RAY_VENVS", dir)
	}
	for _, r := range all {
		t.Run("ray-"+r.Version, func(t *testing.T) { f(t, r) })
	}
}

// shared holds the clusters that the tests of this binary have in common, by version.
var shared struct {
	sync.Mutex
	clusters map[string]*Cluster
	failed   map[string]error
}

// SharedNodes are the nodes of a shared cluster.
var SharedNodes = []NodeSpec{{CPUs: 1, GPUs: 2}, {CPUs: 1, GPUs: 2}, {CPUs: 1, GPUs: 2, Resources: map[string]float64{"NPU": 2}}}

// Shared returns the cluster that the tests of this binary have in common for r: three nodes of one CPU and two
// logical GPUs, the last with two NPUs, and a dashboard. It is started by the first who asks. A test must leave it as it
// was.
func Shared(t *testing.T, r *Ray) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if err := shared.failed[r.Version]; err != nil {
		t.Fatalf("the shared cluster did not start: %v", err)
	}
	if c := shared.clusters[r.Version]; c != nil {
		return c
	}
	c, err := start(r, Options{Nodes: SharedNodes, Dashboard: true})
	if err != nil {
		shared.failed = put(shared.failed, r.Version, err)
		t.Fatalf("start the shared cluster: %v", err)
	}
	shared.clusters = put(shared.clusters, r.Version, c)
	return c
}

func put[V any](m map[string]V, key string, value V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	m[key] = value
	return m
}

// Main runs the tests of a binary, ends the shared clusters, and exits.
func Main(m *testing.M) {
	code := m.Run()
	shared.Lock()
	for version, c := range shared.clusters {
		if err := c.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "end the cluster of Ray %s: %v\n", version, err)
			code = 1
		}
	}
	shared.Unlock()
	os.Exit(code)
}
