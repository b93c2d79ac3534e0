package libcuda

import (
	"os"
	"os/signal"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestRepaired has the library replace handlers of Go's, which it calls in its own: without a
// repair the process ends at the signal.
func TestRepaired(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	arrived := make(chan os.Signal, 2)
	signal.Notify(arrived, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(arrived)
	fake, path := fresh(t)
	fake.Set("signal_at_init", int(unix.SIGUSR1))
	fake.Set("signal_at_retain", int(unix.SIGUSR2))
	l := must(Open(path))(t)
	one := Repair{unix.SIGUSR1, path}
	if got := l.Repaired(); !slices.Equal(got, []Repair{one}) {
		t.Fatalf("%v", got)
	}
	c := must(l.Open(0))(t)
	if got := l.Repaired(); !slices.Equal(got, []Repair{one, {unix.SIGUSR2, path}}) {
		t.Fatalf("%v", got)
	}
	succeed(t, c.Close())
	for _, s := range []unix.Signal{unix.SIGUSR1, unix.SIGUSR2} {
		succeed(t, unix.Kill(os.Getpid(), s))
		if got := <-arrived; got != s {
			t.Errorf("%v instead of %v", got, s)
		}
	}
	if again := must(RepairSignals())(t); len(again) != 0 {
		t.Errorf("repaired again: %v", again)
	}
	want := "SIGUSR1: its handler, of " + path + ", had no SA_ONSTACK: added"
	if got := one.String(); got != want {
		t.Errorf("%s", got)
	}
	want = "signal 33: its handler, of an unknown library, had no SA_ONSTACK: added"
	if got := (Repair{Signal: 33}).String(); got != want {
		t.Errorf("%s", got)
	}
}

// TestLayouts compares structs with what C says of them.
func TestLayouts(t *testing.T) {
	fake, _ := fresh(t)
	var s sigaction
	var a add
	var j jit
	for name, want := range map[string][]uint64{
		"layout_sigaction": {uint64(unsafe.Sizeof(s)), uint64(unsafe.Offsetof(s.handler)),
			uint64(unsafe.Offsetof(s.flags)), uint64(unsafe.Offsetof(s.restorer)),
			uint64(unsafe.Offsetof(s.mask)), onStack, maskBytes},
		"layout_uuid": {uint64(unsafe.Sizeof(uuid{}))},
		"layout_add": {uint64(unsafe.Sizeof(a)), uint64(unsafe.Offsetof(a.n)),
			uint64(unsafe.Offsetof(a.value)), uint64(unsafe.Offsetof(a.scale))},
		"layout_types": {uint64(unsafe.Sizeof(j.options[0])), uint64(unsafe.Sizeof(j.values[0])),
			uint64(unsafe.Sizeof(uintptr(0)))},
	} {
		if got := fake.Layout(name, len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %v instead of %v", name, want, got)
		}
	}
}
