package futex

import (
	"math"
	"sync"
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
	if err := Wait(word, 0, 20*time.Millisecond, &scratch); err != nil ||
		time.Since(began) < 15*time.Millisecond {
		t.Errorf("no wake: %v after %v", err, time.Since(began))
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
	var words [2]atomic.Uint32 // of which a word in the middle is within one allocation
	bad := (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(&words), 1))
	if err := Wait(bad, 0, time.Second, &scratch); err != unix.EINVAL {
		t.Errorf("unaligned word: %v", err)
	}
}

func TestPrivate(t *testing.T) {
	word := new(atomic.Uint32)
	WaitPrivate(word, 1) // another value: returns at once
	var awake sync.WaitGroup
	for range 3 {
		awake.Go(func() {
			for word.Load() == 0 {
				WaitPrivate(word, 0)
			}
		})
	}
	word.Store(1)
	WakePrivate(word, math.MaxInt)
	awake.Wait()
}
