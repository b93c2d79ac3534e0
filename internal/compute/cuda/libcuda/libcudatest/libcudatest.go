// Package libcudatest builds a libcuda.so.1 for tests, which needs no GPU: it checks how it is
// called, counts what is made and released, and fails when it is told to.
package libcudatest

import (
	"embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

//go:embed testdata
var sources embed.FS

// parts are the sources in the order of compilation.
var parts = []string{"fake.c", "device.c", "stream.c", "kernel.c", "layout.c"}

// Build compiles the library into a folder and returns its path. Without gcc the test is skipped,
// and says so. WITHOUT_OLD, WITHOUT_NEW and WITHOUT_FILL leave out exports. Devices are an H200, a
// part of an A100 (MIG), a T4 and a part of an H100; the first two are there unless "devices" is
// set.
//
// A process that loads it reads settings from LIBCUDA_TEST: "cuInit=100 devices=1" has cuInit fail.
func Build(t testing.TB, dir string, without ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: all calls of libcuda, for there is no gcc to build a libcuda.so.1 with")
	}
	if err := os.CopyFS(dir, sources); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libcuda.so.1")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-o", library}
	for _, w := range without {
		args = append(args, "-D"+w)
	}
	for _, p := range parts {
		args = append(args, filepath.Join(dir, "testdata", p))
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}

// Library is a library of Build in this process, seen by its test.
type Library struct {
	t      testing.TB
	handle uintptr
}

// Load loads a library of Build as it is at its start. It stays loaded after the test.
func Load(t testing.TB, path string) *Library {
	t.Helper()
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	l := &Library{t, handle}
	l.Reset()
	return l
}

// Reset releases all there is, and makes the library as it is at its start.
func (l *Library) Reset() { l.call("test_reset") }

// Set changes a setting: version, devices, signal_at_init and signal_at_retain (a signal whose
// handler that call replaces, without SA_ONSTACK), context_active, apart (devices do not reach each
// other), foreign (memory that is exported is another process's).
func (l *Library) Set(name string, value int) {
	l.call("test_set", uintptr(unsafe.Pointer(cString(name))), uintptr(value))
}

// Get is a setting, or what the latest call had: last_bytes and last_threads.
func (l *Library) Get(name string) int {
	return int(l.call("test_get", uintptr(unsafe.Pointer(cString(name)))))
}

// Fail has an export return a code so many times, or always (-1).
func (l *Library) Fail(export string, code, times int) {
	l.call("test_fail", uintptr(unsafe.Pointer(cString(export))), uintptr(code), uintptr(times))
}

// Calls is how often an export was called.
func (l *Library) Calls(export string) int {
	return int(l.call("test_calls", uintptr(unsafe.Pointer(cString(export)))))
}

// Live is how many handles and pieces of memory there are.
func (l *Library) Live() int { return int(l.call("test_live")) }

// Complaints are the arguments that were not as the driver's, a line each.
func (l *Library) Complaints() string { return l.text("test_complaints") }

// Released are the kinds of what was released, in order.
func (l *Library) Released() string { return l.text("test_released") }

// Params are the first bytes of the struct that the latest launch had.
func (l *Library) Params(n int) []byte {
	var p *byte
	l.answer("test_params", &p)
	return append([]byte(nil), unsafe.Slice(p, n)...)
}

// Layout is a table of the sizes and offsets that C has: layout_uuid, layout_add, layout_handle,
// layout_types and layout_sigaction.
func (l *Library) Layout(name string, n int) []uint64 {
	address := l.symbol(name)
	p := *(**uint64)(unsafe.Pointer(&address)) // an address of C, which no collector moves
	return append([]uint64(nil), unsafe.Slice(p, n)...)
}

func (l *Library) text(function string) string {
	var p *byte
	l.answer(function, &p)
	return unix.BytePtrToString(p)
}

// answer is the address that a function returns.
func (l *Library) answer(function string, to **byte) {
	address := l.call(function)
	*to = *(**byte)(unsafe.Pointer(&address))
}

func (l *Library) symbol(name string) uintptr {
	l.t.Helper()
	address, err := purego.Dlsym(l.handle, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return address
}

//go:uintptrescapes
func (l *Library) call(name string, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(l.symbol(name), args...)
	return r
}

// cString is a text as C has it.
func cString(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }
