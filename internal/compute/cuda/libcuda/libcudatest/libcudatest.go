// Package libcudatest builds a libcuda.so.1 for tests, which needs no GPU: it checks how it is
// called, counts what is made and released, and fails when it is told to.
package libcudatest

import (
	"embed"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
)

//go:embed testdata
var sources embed.FS

// parts are the sources in the order of compilation.
var parts = []string{"fake.c", "device.c", "stream.c", "kernel.c", "layout.c"}

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_OLD, WITHOUT_NEW, WITHOUT_FILL and WITHOUT_TENSORS leave out exports.
// Devices are an H200, a part of an A100 (MIG), a T4 and a part of an H100; the first two are there
// unless "devices" is set.
//
// A process that loads it reads settings from LIBCUDA_TEST: "cuInit=100 devices=1" has cuInit fail.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	return fakelib.Build(t, dir, "libcuda", "libcuda.so.1", sources, parts, without...)
}

// Library is a library of Build in this process, seen by its test.
type Library struct{ *fakelib.Library }

// Load loads a library of Build as it is at its start. It stays loaded after the test.
func Load(t testing.TB, path string) *Library {
	t.Helper()
	l := &Library{fakelib.Load(t, path)}
	l.Reset()
	return l
}

// Reset releases all there is, and makes the library as it is at its start.
func (l *Library) Reset() { l.Call("test_reset") }

// Set changes a setting: version, devices, signal_at_init and signal_at_retain (a signal whose
// handler that call replaces, without SA_ONSTACK), context_active, apart (devices do not reach each
// other), foreign (memory that is exported is another process's).
func (l *Library) Set(name string, value int) {
	l.Call("test_set", uintptr(unsafe.Pointer(fakelib.CString(name))), uintptr(value))
}

// Get is a setting, or what the latest call had: last_bytes and last_threads.
func (l *Library) Get(name string) int {
	return int(l.Call("test_get", uintptr(unsafe.Pointer(fakelib.CString(name)))))
}

// Fail has an export return a code so many times, or always (-1).
func (l *Library) Fail(export string, code, times int) {
	l.Call("test_fail", uintptr(unsafe.Pointer(fakelib.CString(export))), uintptr(code),
		uintptr(times))
}

// Calls is how often an export was called.
func (l *Library) Calls(export string) int {
	return int(l.Call("test_calls", uintptr(unsafe.Pointer(fakelib.CString(export)))))
}

// Live is how many handles and pieces of memory there are.
func (l *Library) Live() int { return int(l.Call("test_live")) }

// Complaints are the arguments that were not as the driver's, a line each.
func (l *Library) Complaints() string { return l.Text("test_complaints") }

// Released are the kinds of what was released, in order.
func (l *Library) Released() string { return l.Text("test_released") }

// Params are the first bytes of the struct that the latest launch had.
func (l *Library) Params(n int) []byte {
	return append([]byte(nil), unsafe.Slice(l.Address("test_params"), n)...)
}
