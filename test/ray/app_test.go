package ray_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestServeApp runs the cases of python/tests/ray_serve.py on a cluster whose nodes have the Python
// package: applications of eagleray.serve. Ray's Python has what test_relay.py needs, too.
func TestServeApp(t *testing.T) {
	for _, class := range []string{"Quick", "Deadly", "Layouts", "Scaling", "Split", "Scaled", "Killed"} {
		t.Run(class, func(t *testing.T) {
			each(t, func(t *testing.T, s *site) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				c := exec.CommandContext(ctx, s.Ray.Python, "-m", "unittest", "-v",
					"tests.ray_serve."+class, "tests.test_relay")
				c.Dir = filepath.Join("..", "..", "python")
				c.Env = append(s.Env, "RAY_ADDRESS="+s.Address, "RAY_DASHBOARD="+s.Dashboard,
					"EAGLERAY_NODE_IP="+s.head())
				// What it started ends with its standard input, as the job does.
				c.WaitDelay = 10 * time.Second
				out, err := c.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				t.Logf("%s", out)
				s.clean(t)
			})
		})
	}
}
