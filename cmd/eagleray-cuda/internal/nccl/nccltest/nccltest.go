// Package nccltest builds a libnccl.so.2 for tests, which needs no GPU: it checks how it is called,
// and fails when it is told to. What it gathers lies in the memory of the process.
package nccltest

import (
	"embed"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
)

//go:embed testdata
var sources embed.FS

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_ABORT leaves an export out. A process that loads it reads the codes of calls
// from NCCL_TEST: "ncclGetUniqueId=2" has ncclGetUniqueId fail, "version=21500" is an old one's.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	return fakelib.Build(t, dir, "NCCL", "libnccl.so.2", sources, []string{"nccl.c"}, without...)
}
