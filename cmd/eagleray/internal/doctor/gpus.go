package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"github.com/eagleray/eagleray/internal/engine/groups"
)

// gpuReport is what eagleray-cuda probe prints.
type gpuReport struct {
	Driver  string `json:"driver"`
	Devices []struct {
		Ordinal     int     `json:"ordinal"`
		Name        string  `json:"name"`
		Arch        string  `json:"arch"`
		MemoryFree  *uint64 `json:"memory_free"`
		MemoryTotal uint64  `json:"memory_total"`
		Stop        string  `json:"stop"`
		Note        string  `json:"note"`
	} `json:"devices"`
	Error string `json:"error"`
}

// probeGPUs asks the program of ranks on GPUs what this machine has.
func probeGPUs(ctx context.Context) ([]byte, error) {
	program, err := groups.GPUProgram()
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, program, "probe", "--json").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(out) > 0 {
		return out, nil // it says itself why there is none
	}
	return out, err
}

// gpus looks at the GPUs that ranks would have.
func (m *Machine) gpus(ctx context.Context, ranks int) Result {
	const means = "ranks on GPUs cannot start"
	raw, err := m.GPUs(ctx)
	if err != nil {
		return bad(Fail, "%v|%s|install what it names, or leave --device cuda out", err, means)
	}
	var r gpuReport
	if err := json.Unmarshal(raw, &r); err != nil {
		return bad(Fail, "eagleray-cuda probe printed %q|%s|install the eagleray-cuda of this "+
			"version", raw, means)
	}
	var usable int
	var details []string
	for _, d := range r.Devices {
		line := fmt.Sprintf("%d: %s, %s, %.1f GiB", d.Ordinal, d.Name, d.Arch,
			float64(d.MemoryTotal)/(1<<30))
		if d.MemoryFree != nil {
			line += fmt.Sprintf(", %.1f GiB free", float64(*d.MemoryFree)/(1<<30))
		}
		for _, why := range []string{d.Stop, d.Note} {
			if why != "" {
				line += ": " + why
			}
		}
		if d.Stop == "" {
			usable++
		}
		details = append(details, line)
	}
	result := ok("%d of CUDA %s", usable, r.Driver)
	switch {
	case usable == 0:
		result = bad(Fail, "%s|%s|see eagleray-cuda probe", r.Error, means)
	case usable < ranks:
		result = bad(Fail, "%d for %d ranks|%s|lower --tensor-parallel-size", usable, ranks, means)
	}
	result.Details = details
	return result
}
