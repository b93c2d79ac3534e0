// Package raytest runs tests on real Ray: on pinned versions in virtual environments, with
// clusters of several nodes on loopback addresses of this machine.
//
// A test binary that uses it has func TestMain(m *testing.M) { raytest.Main(m) }.
package raytest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/loopback"
)

// versionsVariable names the versions of Ray that tests run on, separated by spaces. Without it
// none do.
const versionsVariable = "EAGLERAY_RAY"

// Installed returns the pinned versions (requirements/ray-VERSION.txt) that scripts/ray-venv.sh
// has installed.
func Installed() []*Ray {
	root := repository()
	// The pattern is well formed.
	pins, _ := filepath.Glob(filepath.Join(root, "requirements", "ray-*.txt"))
	var all []*Ray
	for _, file := range pins {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "ray-"), ".txt")
		// The script names the folder in the same way.
		hash := sha256.Sum256(text)
		name := fmt.Sprintf("ray-%s-%x", version, hash[:6])
		python := filepath.Join(environments(), name, "bin", "python")
		if _, err := os.Stat(filepath.Join(filepath.Dir(python), "ray")); err == nil {
			all = append(all, &Ray{Version: version, Python: python})
		}
	}
	return all
}

// environments is the folder of the virtual environments, outside the repository: other clones
// use them too.
func environments() string {
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	return cmp.Or(os.Getenv("EAGLERAY_VENV"), filepath.Join(cache, "eagleray", "venv"))
}

// repository is the folder with go.mod, above the package's own, in which tests run.
func repository() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// Each runs f as one subtest for each version of Ray that is asked for.
func Each(t *testing.T, f func(t *testing.T, r *Ray)) {
	t.Helper()
	versions := strings.Fields(os.Getenv(versionsVariable))
	if len(versions) == 0 {
		// Of a test that has other parts too.
		t.Run("ray", func(t *testing.T) {
			t.Skip("real Ray: make test-ray, or versions in " +
				versionsVariable)
		})
	}
	all := Installed()
	for _, version := range versions {
		t.Run("ray-"+version, func(t *testing.T) {
			i := slices.IndexFunc(all, func(r *Ray) bool { return r.Version == version })
			if i < 0 {
				t.Skipf("no Ray %s in %s: see scripts/ray-venv.sh", version, environments())
			}
			f(t, all[i])
		})
	}
}

// shared holds the clusters that the tests of this binary have in common, by version.
var shared struct {
	sync.Mutex
	clusters map[string]*Cluster
	failed   map[string]error
}

// SharedNodes are the nodes of a shared cluster.
var SharedNodes = []NodeSpec{{CPUs: 1, GPUs: 2}, {CPUs: 1, GPUs: 2},
	{CPUs: 1, GPUs: 2, Resources: map[string]float64{"NPU": 2}}}

// QuickChecks make Ray know of a crashed raylet within some three seconds. By default it asks
// nodes for a sign of life every three seconds, and gives one up that did not answer five times.
var QuickChecks = []string{"RAY_health_check_period_ms=500"}

// patientServe lets a proxy of Ray Serve start for so many seconds, of the minute that serve.start
// waits for it. By default one that has not come up after five is killed, and begins anew: on a
// busy machine again and again.
const patientServe = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=50"

// Shared returns the cluster that the tests of this binary have in common for r: three nodes of
// one CPU and two logical GPUs, the last with two NPUs, and a dashboard. It is started by the
// first who asks. A test must leave it as it was.
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
	started, err := loopback.Start(r, Options{Nodes: SharedNodes, Dashboard: true,
		Env: append(slices.Clone(QuickChecks), patientServe)})
	if err != nil {
		shared.failed = put(shared.failed, r.Version, err)
		t.Fatalf("start the shared cluster: %v", err)
	}
	c := &Cluster{started}
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
		if err := c.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "end the cluster of Ray %s: %v\n", version, err)
			code = 1
		}
	}
	shared.Unlock()
	os.Exit(code)
}
