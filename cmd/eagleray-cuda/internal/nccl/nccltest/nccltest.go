// Package nccltest builds a libnccl.so.2 for tests, which needs no GPU: it checks how it is called,
// and fails when it is told to. What it gathers lies in the memory of the process.
package nccltest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/nccl.c
var source []byte

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_ABORT leaves an export out. A process that loads it reads the codes of calls
// from NCCL_TEST: "ncclGetUniqueId=2" has ncclGetUniqueId fail, "version=21500" is an old one's.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: all calls of NCCL, for there is no gcc to build a libnccl.so.2 with")
	}
	from := filepath.Join(dir, "nccl.c")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libnccl.so.2")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
		"-fvisibility=hidden", "-Wl,-soname,libnccl.so.2", "-o", library, from}
	for _, w := range without {
		args = append(args, "-D"+w)
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}
