package ray_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/sys/attached"
)

// withGPUs is a copy of the program to which the one for GPUs is attached.
func withGPUs(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	path, second := filepath.Join(dir, "eagleray"), filepath.Join(dir, "second")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", second,
		"github.com/eagleray/eagleray/cmd/eagleray-cuda")
	cmd.Env = ownEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	raw, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := attached.Attach(path, second); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCUDA serves with ranks on GPUs, for which a machine stands: workers become the program for
// GPUs, which the nodes have as a part of the one that they get.
func TestCUDA(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		binary := withGPUs(t)
		p := s.serve(t, binary, append(slices.Clone(s.Env), queue.CUDADriverVariable+"=machine"),
			"--device", "cuda", "-tp", "2", "--max-model-len", "256")
		if err := os.Remove(binary); err != nil {
			t.Fatal(err)
		}
		url := p.url(t)
		text, err := complete(t, url, 4)
		if err != nil || text == "" {
			t.Errorf("%q, %v", text, err)
		}
		if line := p.log.line("msg=ready"); !strings.Contains(line, "CUDA: of unproven speed") {
			t.Error(line)
		}
		for rank, pid := range p.workers(t) {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err != nil || string(name) != "eagleray-cuda\n" {
				t.Errorf("rank %d is %q, %v", rank, name, err)
			}
			if got := environ(t, pid)["CUDA_VISIBLE_DEVICES"]; got != "0,1" {
				t.Errorf("rank %d sees devices %q", rank, got)
			}
		}
		p.signal(t, syscall.SIGTERM)
		if code := p.exit(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.clean(t)
	})
}
