// Package gpus knows the program that runs ranks on GPUs, and asks it what this machine has. It is
// another one than eagleray, since the driver's library makes a program dynamic, and is attached to
// that: a process of eagleray becomes it.
package gpus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"github.com/eagleray/eagleray/internal/sys/executable"
)

// GPU is one that the driver has.
type GPU struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name"`
	Arch    string `json:"arch"`
	// MemoryTotal and MemoryFree are bytes; what is free of one that cannot be opened is not known.
	MemoryTotal int64  `json:"memory_total"`
	MemoryFree  *int64 `json:"memory_free"`
	// Stop is why it cannot be used, "" if it can; Note is what limits its use.
	Stop string `json:"stop"`
	Note string `json:"note"`
}

// Found is what a machine has.
type Found struct {
	// Driver is the newest CUDA version that the driver supports.
	Driver string `json:"driver"`
	// Release is the driver's version by NVML, which measures GPUs; "" where there is no NVML, and
	// Unmeasured says why.
	Release    string `json:"release"`
	Unmeasured string `json:"unmeasured"`
	// NCCL is the version of the library by which ranks sum that do not reach each other's memory;
	// "" where there is none, and WithoutNCCL says why.
	NCCL        string `json:"nccl_version"`
	WithoutNCCL string `json:"without_nccl"`
	// CUBLASLt is the version of the library that may compute products of many rows, "" for none.
	CUBLASLt string `json:"cublaslt_version"`
	// Apart says that some GPUs do not reach the memory of another one.
	Apart   bool  `json:"apart"`
	Devices []GPU `json:"devices"`
	// Error is why none can be used, and what to do.
	Error string `json:"error"`
}

// Usable are those that ranks may have.
func (f *Found) Usable() (list []GPU) {
	for _, g := range f.Devices {
		if g.Stop == "" {
			list = append(list, g)
		}
	}
	return list
}

// Probe asks the second program, in a process of its own. Its error is of the asking: a machine
// without GPUs is Found.Error.
func Probe(ctx context.Context) (*Found, error) {
	out, err := exec.CommandContext(ctx, executable.Own, Verb, "probe", "--json").Output()
	exit := (*exec.ExitError)(nil)
	switch {
	case errors.As(err, &exit) && len(out) > 0:
		// It says itself why there is none.
	case errors.As(err, &exit) && len(exit.Stderr) > 0:
		return nil, fmt.Errorf("probe of GPUs: %s", bytes.TrimSpace(exit.Stderr))
	case err != nil:
		return nil, fmt.Errorf("probe of GPUs: %w", err)
	}
	f := new(Found)
	if err := json.Unmarshal(out, f); err != nil {
		return nil, fmt.Errorf("probe of GPUs: it printed %.200q: %w", out, err)
	}
	return f, nil
}
