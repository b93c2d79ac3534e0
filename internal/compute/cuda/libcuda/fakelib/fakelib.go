// Package fakelib builds shared libraries in C that stand for NVIDIA's in tests, loads them, and
// calls what they export for the test.
package fakelib

import (
	_ "embed"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// calls is a header for exports that check their arguments, and return the code that a test wants.
//
//go:embed calls.h
var calls []byte

// Build compiles sources, in their order, to a library of a folder, by its soname, and returns its
// path. They may include calls.h; each of without is defined for them. Without gcc the test is
// skipped, and says what of.
func Build(t testing.TB, dir, what, soname string, sources fs.FS, names []string,
	without ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skipf("skipped: all calls of %s, for there is no gcc to build a %s with", what, soname)
	}
	library := filepath.Join(dir, soname)
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-fvisibility=hidden", "-Wl,-soname," + soname, "-o", library}
	for _, w := range without {
		args = append(args, "-D"+w)
	}
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "calls.h"), calls, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(from, sources); err != nil {
		t.Fatal(err)
	}
	args = append(args, "-I", from)
	for _, name := range names {
		args = append(args, filepath.Join(from, "testdata", name))
	}
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}

// Library is a library of Build in this process, seen by its test.
type Library struct {
	// Path is its file.
	Path string

	t      testing.TB
	handle uintptr
}

// Load loads a library of Build. It stays loaded after the test.
func Load(t testing.TB, path string) *Library {
	t.Helper()
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	return &Library{path, t, handle}
}

// Watch loads a library that includes calls.h, as it is at its start. The test fails at its end if
// an argument was not as the real library's.
func Watch(t testing.TB, path string) *Library {
	t.Helper()
	l := Load(t, path)
	l.Codes("")
	t.Cleanup(func() {
		if c := l.Text("test_complaints"); c != "" {
			t.Errorf("arguments that are not the library's:\n%s", c)
		}
	})
	return l
}

// Codes makes a library that includes calls.h as it is at its start, with codes of calls.
func (l *Library) Codes(codes string) {
	l.t.Helper()
	l.Call("test_set", uintptr(unsafe.Pointer(CString(codes))))
}

// Failed checks the text of an error, which has PATH in the place of the library's path.
func (l *Library) Failed(what string, err error, want string) {
	l.t.Helper()
	if err == nil || strings.ReplaceAll(err.Error(), l.Path, "PATH") != want {
		l.t.Errorf("%s: %v instead of %s", what, err, want)
	}
}

// Symbol is the address of an export.
func (l *Library) Symbol(name string) uintptr {
	l.t.Helper()
	address, err := purego.Dlsym(l.handle, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return address
}

// Call calls an export, and returns what it does.
//
//go:uintptrescapes
func (l *Library) Call(name string, args ...uintptr) uintptr {
	l.t.Helper()
	r, _, _ := purego.SyscallN(l.Symbol(name), args...)
	return r
}

// Address is what a function returns that returns an address of C, which no collector moves.
func (l *Library) Address(function string) *byte {
	l.t.Helper()
	address := l.Call(function)
	return *(**byte)(unsafe.Pointer(&address))
}

// Text is what a function returns that returns a text.
func (l *Library) Text(function string) string {
	l.t.Helper()
	return unix.BytePtrToString(l.Address(function))
}

// Layout is a table of n sizes and offsets that C has.
func (l *Library) Layout(name string, n int) []uint64 {
	l.t.Helper()
	address := l.Symbol(name)
	p := *(**uint64)(unsafe.Pointer(&address))
	return append([]uint64(nil), unsafe.Slice(p, n)...)
}

// CString is a text as C has it.
func CString(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }
