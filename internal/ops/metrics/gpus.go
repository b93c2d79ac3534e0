package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/eagleray/eagleray/internal/link/status"
)

// GPU is what is known of the GPU of one rank.
type GPU struct {
	Rank int
	status.GPU
}

// gpuSeries are the series of figures: names in base units as those beside them, in the help the
// field that DCGM's exporter shows. unit is what one of the figure is of the series.
var gpuSeries = [...]struct {
	of         status.Figure
	name, help string
	kind       prometheus.ValueType
	unit       float64
}{
	{status.GPUMemoryUsed, "gpu_memory_used_bytes",
		"Memory of the rank's GPU in use (DCGM_FI_DEV_FB_USED).", prometheus.GaugeValue, 1},
	{status.GPUMemoryTotal, "gpu_memory_total_bytes",
		"Memory of the rank's GPU (DCGM_FI_DEV_FB_TOTAL).", prometheus.GaugeValue, 1},
	{status.GPUBusy, "gpu_utilization_perc", "Share of time in which a kernel ran on the " +
		"rank's GPU (DCGM_FI_DEV_GPU_UTIL). 1 means 100 percent.", prometheus.GaugeValue, 0.01},
	{status.GPUMemoryBusy, "gpu_memory_copy_utilization_perc", "Share of time in which memory " +
		"of the rank's GPU was read or written (DCGM_FI_DEV_MEM_COPY_UTIL). 1 means 100 percent.",
		prometheus.GaugeValue, 0.01},
	{status.GPUClock, "gpu_sm_clock_hertz",
		"Clock of the rank's multiprocessors (DCGM_FI_DEV_SM_CLOCK).", prometheus.GaugeValue, 1e6},
	{status.GPUMemoryClock, "gpu_memory_clock_hertz",
		"Clock of the memory of the rank's GPU (DCGM_FI_DEV_MEM_CLOCK).", prometheus.GaugeValue,
		1e6},
	{status.GPUPower, "gpu_power_usage_watts",
		"Power that the rank's GPU takes (DCGM_FI_DEV_POWER_USAGE).", prometheus.GaugeValue, 1e-3},
	{status.GPUTemperature, "gpu_temperature_celsius",
		"Temperature of the rank's GPU (DCGM_FI_DEV_GPU_TEMP).", prometheus.GaugeValue, 1},
	{status.GPUCorrected, "gpu_ecc_corrected_errors_total", "Errors of memory that the rank's " +
		"GPU has corrected since the driver was loaded (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL).",
		prometheus.CounterValue, 1},
	{status.GPUUncorrected, "gpu_ecc_uncorrected_errors_total", "Errors of memory that the " +
		"rank's GPU could not correct since the driver was loaded " +
		"(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL).", prometheus.CounterValue, 1},
}

// throttles are the reasons for low clocks by their bits (nvmlClocksThrottleReasons). An idle GPU
// and clocks that its owner has set are no reasons to look at.
var throttles = [...]struct {
	bit    uint64
	reason string
}{
	{0x4, "sw_power_cap"}, {0x8, "hw_slowdown"}, {0x10, "sync_boost"},
	{0x20, "sw_thermal_slowdown"}, {0x40, "hw_thermal_slowdown"},
	{0x80, "hw_power_brake_slowdown"},
}

// gpuCollector asks for the figures of GPUs when they are scraped.
type gpuCollector struct {
	gpus      func() []GPU
	series    [len(gpuSeries)]*prometheus.Desc
	throttled *prometheus.Desc
}

// WatchGPUs shows the GPUs that f returns, as of each scrape: of each the figures that are known.
// It is called once.
func (e *Engine) WatchGPUs(f func() []GPU) {
	c := &gpuCollector{gpus: f}
	for i, s := range gpuSeries {
		c.series[i] = prometheus.NewDesc(prefix+s.name, s.help, []string{"rank"}, e.labels)
	}
	c.throttled = prometheus.NewDesc(prefix+"gpu_throttled", "1 while this reason keeps clocks of "+
		"the rank's GPU low (DCGM_FI_DEV_CLOCK_THROTTLE_REASONS).", []string{"rank", "reason"},
		e.labels)
	e.register(c)
}

// Describe implements prometheus.Collector.
func (c *gpuCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.series {
		out <- d
	}
	out <- c.throttled
}

// Collect implements prometheus.Collector.
func (c *gpuCollector) Collect(out chan<- prometheus.Metric) {
	for _, g := range c.gpus() {
		rank := strconv.Itoa(g.Rank)
		for i, s := range gpuSeries {
			if v, known := g.Get(s.of); known {
				out <- prometheus.MustNewConstMetric(c.series[i], s.kind, float64(v)*s.unit, rank)
			}
		}
		bits, known := g.Get(status.GPUThrottled)
		for _, t := range throttles {
			if known {
				out <- prometheus.MustNewConstMetric(c.throttled, prometheus.GaugeValue,
					float64(min(1, bits&t.bit)), rank, t.reason)
			}
		}
	}
}

var _ prometheus.Collector = (*gpuCollector)(nil)
