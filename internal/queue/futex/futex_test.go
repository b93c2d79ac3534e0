package futex

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestWait(t *testing.T) {
	var scratch unix.Timespec
	word := new(atomic.Uint32)
	began := time.Now()
	if err := Wait(word, 1, 0, &scratch); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("another value: %v after %v", err, time.Since(began))
	}
	began = time.Now()
	if err := Wait(word, 0, 20*time.Millisecond, &scratch); err != nil || time.Since(began) < 15*time.Millisecond {
		t.Errorf("nobody wakes: %v after %v", err, time.Since(began))
	}
	go func() {
		for word.Load() != 2 {
			time.Sleep(time.Millisecond)
			word.CompareAndSwap(0, 1)
			Wake(word)
		}
	}()
	for word.Load() == 0 {
		if err := Wait(word, 0, 0, &scratch); err != nil {
			t.Fatal(err)
		}
	}
	word.Store(2)
	bad := (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(word), 1))
	if err := Wait(bad, 0, time.Second, &scratch); err != unix.EINVAL {
		t.Errorf("unaligned word: %v", err)
	}
}

func TestPause(t *testing.T) {
	began := time.Now()
	Pause(1)
	Pause(100_000)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("100,000 pauses take %v", d)
	}
}
