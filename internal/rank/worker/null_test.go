package worker

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// TestStepElsewhere executes a step that takes its time and no core.
func TestStepElsewhere(t *testing.T) {
	const stepTime = 200 * time.Millisecond
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := &null{Null: queue.Null{Tokens: []int32{7}, StepTime: stepTime, Elsewhere: true},
		output: true}
	var p step.Plan
	p.Rows = append(p.Rows, step.Row{Count: 1, Sample: true})
	var res step.Result
	began, cpu := time.Now(), threadTime(t)
	if err := n.Execute(&p, &res); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < stepTime {
		t.Errorf("the step took %v, want at least %v", took, stepTime)
	}
	if used := threadTime(t) - cpu; used > stepTime/2 {
		t.Errorf("the step used %v of a core", used)
	}
}

// TestDevice has plans begin at the end of the one before when they were there, and when they come
// when they were not.
func TestDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 10 * time.Millisecond
		var d device
		started := time.Now()
		ends := func(want time.Duration) {
			t.Helper()
			d.execute(step)
			if got := time.Since(started); got != want {
				t.Errorf("ended after %v, want %v", got, want)
			}
		}
		ends(10 * time.Millisecond)
		ends(20 * time.Millisecond)
		// That end was 3 ms ago, which is noticed only now: the plan that was there has begun then.
		d.until = d.until.Add(-3 * time.Millisecond)
		ends(27 * time.Millisecond)
		ends(37 * time.Millisecond)
		// An end is noticed more than a step late: the next plan has ended, too, and the one that
		// is sent now begins now.
		time.Sleep(15 * time.Millisecond)
		d.answered = time.Now()
		ends(52 * time.Millisecond)
		ends(62 * time.Millisecond)
		time.Sleep(time.Millisecond)
		ends(73 * time.Millisecond)
	})
}

// threadTime returns how long this thread has run on a core.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
