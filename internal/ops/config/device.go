package config

import "github.com/eagleray/eagleray/internal/link/queue"

// What computes: the values of --device.
const (
	DeviceAuto = "auto"
	CPU        = "cpu"
	CUDA       = "cuda"
)

var devices = []string{DeviceAuto, CPU, CUDA}

// checkDevice refuses what a CUDA device does not do, and flags of the CPU for one.
func (c *Config) checkDevice() error {
	p := &c.Parallel
	if p.Device != CUDA {
		if p.CUDAFast {
			return usage("--cuda-fast without --device cuda: it is of GPUs")
		}
		return nil
	}
	_, machine := queue.CUDAMachine()
	if p.Ray.DeviceKey == "CPU" && !machine { // the default, where a CPU computes
		p.Ray.DeviceKey = "GPU"
	}
	refuse := func(flag, why string) error {
		return usage("%s with --device cuda: %s", flag, why)
	}
	switch {
	case p.CPUISA != "":
		return refuse("--cpu-isa "+p.CPUISA, "no CPU multiplies")
	case p.Backend == "uni":
		return refuse("--distributed-executor-backend uni",
			"ranks on GPUs are run by a program of their own")
	case p.Backend == "ray" && p.Ray.DeviceKey != "GPU" && !machine:
		return refuse("--ray-device-key "+p.Ray.DeviceKey, "Ray shows a rank GPUs by the key GPU")
	}
	return nil
}
