package ray_test

import (
	"os/exec"
	"testing"
)

// The bridge's own tests need Python, but no Ray.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	cmd := exec.Command(python, "-B", "-m", "unittest", "wire_test", "actor_test")
	cmd.Dir = "python"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
