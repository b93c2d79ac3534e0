package worker

import (
	"errors"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Device is what a rank computes by: a CPU or a GPU.
type Device interface {
	layers.Device
	// Count has what moves in long computations counted, until Count(nil) returns.
	Count(moved *atomic.Uint64)
	// ISA is what bits depend on: an instruction set, or a GPU's architecture.
	ISA() string
	// DropSpare frees memory that is kept for the next weights.
	DropSpare()
	// Close gives all of it back.
	Close()
}

// GPU is what a rank asks of the GPU that it computes on.
type GPU struct {
	// Ordinal is its number among those that the process may use.
	Ordinal int
	DType   compute.DType
	// Threads are the rank's on the host.
	Threads int
	// Eager has every step launched kernel by kernel.
	Eager bool
	// Fast lets products have bits that depend on the batch.
	Fast bool
}

// GPUs are those of a machine.
type GPUs interface {
	// Memory bounds that of a GPU, by its ordinal. It is nil where the GPU cannot be opened: New
	// says why.
	Memory(ordinal int) memory.Bounds
	// New makes the device of a rank.
	New(GPU) (Device, error)
	// Peers is a rank's way to those that it sums with, by their devices where these reach each
	// other, else by host.
	Peers(d Device, rank, size int, host layers.Comm, group layers.HostGroup) Peers
	// Places is a rank's way to those of its number in other places, with which it shares experts.
	Places(d Device, rank, size int, host layers.Comm, group layers.HostGroup) Places
	// Meter measures a GPU, by its ordinal; nil where nothing can. Any thread may call it, one at a
	// time.
	Meter(ordinal int) Meter
}

// Meter sets the figures of a GPU as of now; those that the driver does not have are not known.
type Meter func(*status.GPU)

// Peers are ranks that may sum by their devices, Places those that may exchange rows so.
type (
	Peers interface {
		layers.Comm
		Neighbours
	}
	Places interface {
		layers.VisitComm
		Neighbours
	}
)

// Neighbours are ranks that may exchange by their devices.
type Neighbours interface {
	// Connect meets the ranks of a group, until ended. Way says how they exchange then, and why,
	// What what.
	Connect(ended <-chan struct{}) error
	Way() string
	What() string
	// Leave leaves the group. Sleep, which all ranks call, also frees memory, until Connect.
	Leave()
	Sleep() error
	Asleep() bool
}

// place is what a rank may use of its machine.
type place struct {
	share machine.Share
	// beside says that others compute in the same process.
	beside bool
	// ordinal is the number of its GPU.
	ordinal int
	gpus    GPUs
}

// newDevice makes a rank's device.
func newDevice(init *queue.Init, at place) (Device, error) {
	dtype, err := compute.ParseDType(init.DType)
	if err != nil {
		return nil, err
	}
	if init.Device == queue.CUDA {
		if at.gpus == nil {
			return nil, errors.New("this program has no CUDA driver: eagleray cuda runs ranks on " +
				"GPUs")
		}
		return at.gpus.New(GPU{Ordinal: at.ordinal, DType: dtype, Threads: at.share.Threads,
			Eager: init.Eager, Fast: init.Fast})
	}
	opt := cpu.Options{Threads: at.share.Threads, ISA: init.ISA, DType: dtype}
	if at.beside {
		opt.Processors = at.share.Processors
	}
	return cpu.New(opt)
}

// GPUDevice is a Device of GPUs.
type GPUDevice interface {
	Device
	// ManyRows says what computes steps of many rows, and why.
	ManyRows() string
}

// describe says what a rank computes with, and why.
func describe(init *queue.Init, d Device) string {
	if g, ok := d.(GPUDevice); ok {
		return "CUDA: of unproven speed; many rows by " + g.ManyRows()
	}
	return isa.Describe(init.ISA)
}

var _ Device = (*cpu.Device)(nil)
