// Package gpus knows the program that runs ranks on GPUs, and asks it what this machine has.
package gpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// name is the program's file. It is another one than eagleray, since the driver's library makes a
// program dynamic.
const name = "eagleray-cuda"

// Program is where the program is: beside this one.
func Program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own binary: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("ranks on GPUs are run by %s, which is not beside %s: make build "+
			"makes both", name, self)
	}
	return path, nil
}

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
	Driver  string `json:"driver"`
	Devices []GPU  `json:"devices"`
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

// Probe asks the program. Its error is of the asking: a machine without GPUs is Found.Error.
func Probe(ctx context.Context) (*Found, error) {
	program, err := Program()
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, program, "probe", "--json").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(out) > 0 {
		err = nil // it says itself why there is none
	}
	if err != nil {
		return nil, fmt.Errorf("%s probe: %w", name, err)
	}
	f := new(Found)
	if err := json.Unmarshal(out, f); err != nil {
		return nil, fmt.Errorf("%s probe printed %.200q: %w", name, out, err)
	}
	return f, nil
}
