package worker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// TestBinding binds a rank of two that share a process to the processor of its set, and wants a
// thread of it to have that mask.
func TestBinding(t *testing.T) {
	all := machine.ReadTopology().Numbers()
	if len(all) < 2 {
		t.Skip("one processor")
	}
	hub, ports := queue.Pipes(1)
	d := &drive{t, hub, make(chan error, 1)}
	opt := Options{Rank: 0, DriversClock: true, Place: machine.Place{Index: 1, Of: 2}}
	go func() { d.done <- Run(ports[0], opt) }()
	init := tiny()
	init.Threads, init.Bind = 0, fmt.Sprintf("%d|%d", all[0], all[1])
	d.tell(queue.KindInit, init)
	var r queue.Ready
	err := json.Unmarshal(d.want(queue.KindReady), &r)
	if want := fmt.Sprintf("%d (as listed)", all[1]); err != nil || r.Binding != want ||
		r.Threads != 1 {
		t.Errorf("%+v, %v, want %s", r, err, want)
	}
	if n := threadsOn(all[1]); n != 1 {
		t.Errorf("%d threads are bound to processor %d", n, all[1])
	}
	hub.Close()
	<-d.done
}

// threadsOn counts the threads of this process that run on one processor only.
func threadsOn(processor int) (n int) {
	files, _ := filepath.Glob("/proc/self/task/*/status")
	for _, name := range files {
		raw, _ := os.ReadFile(name)
		if strings.Contains(string(raw), fmt.Sprintf("Cpus_allowed_list:\t%d\n", processor)) {
			n++
		}
	}
	return n
}

// TestBindingRefused: a list that has no set for the rank fails its start, by the flag's name.
func TestBindingRefused(t *testing.T) {
	h := new(Host)
	init := tiny()
	init.Bind = "0"
	_, err := h.bind(&init, &Options{Place: machine.Place{Index: 0, Of: 2}})
	if err == nil || !strings.HasPrefix(err.Error(), `--cpu-bind "0": 1 sets for the 2 ranks`) {
		t.Error(err)
	}
}

// TestUnknownPlace: a rank that does not know which others there are is bound to nothing.
func TestUnknownPlace(t *testing.T) {
	h := new(Host)
	init := tiny()
	init.Threads = 0
	share, err := h.bind(&init, &Options{Threads: 3})
	if err != nil || share.Threads != 3 || share.Processors != nil || share.Why == "" {
		t.Errorf("%+v, %v", share, err)
	}
}
