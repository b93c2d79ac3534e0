package worker

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// TestStepElsewhere executes a step that takes its time and no core.
func TestStepElsewhere(t *testing.T) {
	const stepTime = 200 * time.Millisecond
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := &null{Null: queue.Null{Tokens: []int32{7}, StepTime: stepTime, Elsewhere: true}, output: true}
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

// threadTime returns how long this thread has run on a core.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
