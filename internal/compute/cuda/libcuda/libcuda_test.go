package libcuda

import (
	"os"
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/libcudatest"
)

// built is where the library is that most tests share: a process cannot unload it.
var built struct{ dir, path string }

func TestMain(m *testing.M) {
	var err error
	if built.dir, err = os.MkdirTemp("", "libcuda"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// fresh is the library as it is at its start. No test with it is parallel to another.
func fresh(t *testing.T) (fake *libcudatest.Library, path string) {
	t.Helper()
	if built.path == "" {
		built.path = libcudatest.Build(t, built.dir)
	}
	return watched(t, built.path), built.path
}

// watched is a library whose test fails at a wrong argument, and when something is not released.
func watched(t *testing.T, path string) *libcudatest.Library {
	t.Helper()
	fake := libcudatest.Load(t, path)
	t.Cleanup(func() {
		if c := fake.Complaints(); c != "" {
			t.Errorf("arguments that are not the driver's:\n%s", c)
		}
		if n := fake.Live(); n != 0 {
			t.Errorf("%d handles or pieces of memory are left", n)
		}
	})
	return fake
}

// opened is a fresh library, opened.
func opened(t *testing.T) (*libcudatest.Library, *Library) {
	t.Helper()
	fake, path := fresh(t)
	return fake, must(Open(path))(t)
}

// inContext is a context of a device, current in the thread of the test, closed at its end.
func inContext(t *testing.T, ordinal int) (*libcudatest.Library, driver.Context) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	fake, l := opened(t)
	return fake, contextOf(t, l, ordinal)
}

func contextOf(t *testing.T, l *Library, ordinal int) driver.Context {
	t.Helper()
	c := must(l.Open(ordinal))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// must is a result that comes without an error.
func must[T any](x T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func succeed(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
