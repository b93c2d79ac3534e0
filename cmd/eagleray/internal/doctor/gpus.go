package doctor

import (
	"context"
	"fmt"
)

// gpus looks at the GPUs that ranks would have.
func (m *Machine) gpus(ctx context.Context, ranks int) Result {
	const means = "ranks on GPUs cannot start"
	found, err := m.GPUs(ctx)
	if err != nil {
		return bad(Fail, "%v|%s|install what it names, or leave --device cuda out", err, means)
	}
	var details []string
	for _, g := range found.Devices {
		line := fmt.Sprintf("%d: %s, %s, %.1f GiB", g.Ordinal, g.Name, g.Arch,
			float64(g.MemoryTotal)/(1<<30))
		if g.MemoryFree != nil {
			line += fmt.Sprintf(", %.1f GiB free", float64(*g.MemoryFree)/(1<<30))
		}
		for _, why := range []string{g.Stop, g.Note} {
			if why != "" {
				line += ": " + why
			}
		}
		details = append(details, line)
	}
	if found.WithoutNCCL != "" {
		details = append(details, "ranks that do not reach each other's memory sum through their "+
			"hosts: "+found.WithoutNCCL)
	}
	usable := len(found.Usable())
	measured := "driver " + found.Release + " (NVML)"
	if found.Release == "" {
		measured = "no figures of them on /metrics: " + found.Unmeasured
	}
	if found.NCCL != "" {
		measured += ", NCCL " + found.NCCL
	}
	if found.CUBLASLt != "" {
		measured += ", cuBLASLt " + found.CUBLASLt
	}
	result := ok("%d of CUDA %s, %s", usable, found.Driver, measured)
	switch {
	case usable == 0:
		result = bad(Fail, "%s|%s|see eagleray cuda probe", found.Error, means)
	case usable < ranks:
		result = bad(Fail, "%d for %d ranks|%s|lower --tensor-parallel-size", usable, ranks, means)
	}
	result.Details = details
	return result
}
