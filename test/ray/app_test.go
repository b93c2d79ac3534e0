package ray_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestServeApp runs the cases of python/tests/ray_serve on a cluster whose nodes have the Python
// package: applications of eagleray.serve. Ray's Python has what test_ingress.py and others need,
// too.
func TestServeApp(t *testing.T) {
	for _, class := range []string{"Quick", "Deadly", "Layouts", "Scaling", "Split", "Scaled",
		"Killed", "Ingresses", "Examples"} {
		t.Run(class, func(t *testing.T) {
			each(t, func(t *testing.T, s *site) {
				s.serveCases(t, "ray_serve."+strings.ToLower(class)+"."+class+
					" test_ingress test_callers test_http")
				s.clean(t)
			})
		})
	}
}

// serveCases runs cases of python/tests, with more in their environment.
func (s *site) serveCases(t *testing.T, names string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cases := []string{"-m", "unittest", "-v"}
	for _, name := range strings.Fields(names) {
		cases = append(cases, "tests."+name)
	}
	c := exec.CommandContext(ctx, s.Ray.Python, cases...)
	c.Dir = filepath.Join("..", "..", "python")
	c.Env = append(append(s.Env, "RAY_ADDRESS="+s.Address, "RAY_DASHBOARD="+s.Dashboard,
		"EAGLERAY_NODE_IP="+s.head()), env...)
	// What it started ends with its standard input, as the job does.
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
