// Package nvmltest builds a libnvidia-ml.so.1 for tests, which needs no GPU: it checks how it is
// called, and fails when it is told to. Its GPUs are the first two of libcudatest.
package nvmltest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/nvml.c
var source []byte

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_REASONS leaves an export out. A process that loads it reads the codes of
// calls from NVML_TEST: "nvmlInit_v2=9" has nvmlInit_v2 fail.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: all calls of NVML, for there is no gcc to build a libnvidia-ml.so.1 with")
	}
	from := filepath.Join(dir, "nvml.c")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
		"-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, from}
	for _, w := range without {
		args = append(args, "-D"+w)
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}
