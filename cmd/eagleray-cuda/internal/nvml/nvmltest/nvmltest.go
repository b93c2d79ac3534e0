// Package nvmltest builds a libnvidia-ml.so.1 for tests, which needs no GPU: it checks how it is
// called, and fails when it is told to. Its GPUs are the first two of libcudatest.
package nvmltest

import (
	"embed"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
)

//go:embed testdata
var sources embed.FS

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_REASONS leaves an export out. A process that loads it reads the codes of
// calls from NVML_TEST: "nvmlInit_v2=9" has nvmlInit_v2 fail.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	return fakelib.Build(t, dir, "NVML", "libnvidia-ml.so.1", sources, []string{"nvml.c"},
		without...)
}
