package queuetest

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// Counted is how many goroutines and descriptors there are.
func Counted(t testing.TB) [2]int {
	t.Helper()
	runtime.GC()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return [2]int{runtime.NumGoroutine(), len(fds)}
}

// NoLeaks returns a check that as many goroutines and descriptors are left as there are now.
func NoLeaks(t testing.TB) func() {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the runtime keeps its poller's descriptors from the first socket on
	}
	before := Counted(t)
	return func() {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			after := Counted(t)
			if after[0] <= before[0] && after[1] <= before[1] {
				return
			}
			if time.Now().After(end) {
				buf := make([]byte, 1<<16)
				t.Fatalf("goroutines and descriptors %v, before %v\n%s", after, before,
					buf[:runtime.Stack(buf, true)])
			}
		}
	}
}
