package worker

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// oneGPU is a PTX machine, whose context it keeps.
type oneGPU struct {
	GPUs
	double.Driver
	ctx driver.Context
}

func (g *oneGPU) Open(ordinal int) (c driver.Context, err error) {
	g.ctx, err = g.Driver.Open(ordinal)
	return g.ctx, err
}

func (g *oneGPU) New(o GPU) (Device, error) {
	return cuda.New(cuda.Options{Driver: g, DType: o.DType, Threads: o.Threads, PTX: true})
}

func (g *oneGPU) Meter(int) Meter { return nil }

// used is how many bytes of the GPU are.
func (g *oneGPU) used() uint64 {
	free, total, _ := g.ctx.MemInfo()
	return total - free
}

// TestSleepOnGPU has weights leave the memory of a GPU when they sleep, and come back.
func TestSleepOnGPU(t *testing.T) {
	hub, ports := queue.Pipes(1)
	d := &drive{t, hub, make(chan error, 1)}
	defer hub.Close()
	g := new(oneGPU)
	h := Host{gpus: g}
	go func() { d.done <- h.Run(ports[0], Options{DriversClock: true}) }()
	init := tiny()
	init.Device, init.DType = queue.CUDA, "bfloat16"
	d.tell(queue.KindInit, init)
	var r queue.Ready
	if err := json.Unmarshal(d.want(queue.KindReady), &r); err != nil {
		t.Fatal(err)
	}
	id := uint64(0)
	sleep := func(asleep calls.Asleep) uint64 {
		t.Helper()
		args, err := json.Marshal(asleep)
		if err != nil {
			t.Fatal(err)
		}
		id++
		if r := d.call(queue.Call{ID: id, Method: calls.Sleep.Name, Args: args}); r.Failure != "" {
			t.Fatal(r.Failure)
		}
		return g.used()
	}
	d.plan(prompt(1, 7, 8, 9))
	first := slices.Clone(d.result().Token)
	awake := sleep(calls.Asleep{KVCache: true})
	if left := sleep(calls.Asleep{KVCache: true, Weights: true}); left > awake/2 {
		t.Errorf("%d bytes are used while weights sleep, of %d", left, awake)
	}
	sleep(calls.Asleep{})
	d.plan(prompt(2, 7, 8, 9))
	if again := d.result().Token; !slices.Equal(again, first) {
		t.Errorf("%v, and %v after sleep", first, again)
	}
	d.send([]byte{byte(queue.KindShutdown)})
	if err := d.ends(); err != nil {
		t.Error(err)
	}
}
