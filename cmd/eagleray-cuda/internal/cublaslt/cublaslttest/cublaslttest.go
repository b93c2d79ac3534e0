// Package cublaslttest builds a libcublasLt.so.13 for tests, which needs no GPU: it checks how it
// is called, and fails when it is told to. What it multiplies lies in the memory of the process.
package cublaslttest

import (
	"embed"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
)

//go:embed testdata
var sources embed.FS

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_CHECK leaves an export out. A process that loads it reads the codes of calls
// from CUBLASLT_TEST: "cublasLtCreate=1" has cublasLtCreate fail, "version=110900" is an old one's.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	return fakelib.Build(t, dir, "cuBLASLt", "libcublasLt.so.13", sources,
		[]string{"cublaslt.c"}, without...)
}
