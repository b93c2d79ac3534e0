package status

import "sync/atomic"

// Figure is one of those that a GPU's driver measures.
type Figure int

// The figures of a GPU.
const (
	// GPUMemoryUsed and GPUMemoryTotal are in bytes, of all processes and of the driver.
	GPUMemoryUsed Figure = iota
	GPUMemoryTotal
	// GPUBusy and GPUMemoryBusy are the hundredths of a short time before in which a kernel ran,
	// and in which memory was read or written.
	GPUBusy
	GPUMemoryBusy
	// GPUClock and GPUMemoryClock are in MHz, of the multiprocessors and of memory.
	GPUClock
	GPUMemoryClock
	// GPUPower is in milliwatts, GPUTemperature in degrees Celsius.
	GPUPower
	GPUTemperature
	// GPUThrottled has a bit for each reason that keeps clocks low (nvmlClocksThrottleReasons).
	GPUThrottled
	// GPUCorrected and GPUUncorrected count errors of memory since the driver was loaded.
	GPUCorrected
	GPUUncorrected
	// Figures is how many there are.
	Figures
)

// GPU is what is known of a rank's GPU: each figure by one more than it is, 0 where it is not
// known. The zero GPU is none.
type GPU [Figures]uint64

// Know sets a figure.
func (g *GPU) Know(f Figure, value uint64) { g[f] = value + 1 }

// Get is a figure, if it is known.
func (g GPU) Get(f Figure) (value uint64, known bool) { return g[f] - 1, g[f] > 0 }

// gpuWords are a GPU in the status of a rank. What follows them keeps that a multiple of 64 bytes.
type gpuWords struct {
	figures [Figures]atomic.Uint64
	_       [(64 - (8+Figures)*8%64) % 64]byte
}

// Measures publishes what is known of the rank's GPU. It is no sign of work being done.
func (r *Rank) Measures(g *GPU) {
	for f := range g {
		r.gpu.figures[f].Store(g[f])
	}
}
