// Package kernels has the CUDA device's kernels: CUDA C, the PTX that NVRTC made of it, which is
// what a driver is given and what the machine of package ptx executes in tests, and the Go mirror
// of their parameters. make kernels makes the generated files again; resources.txt is what they
// take on each architecture.
package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"slices"
)

//go:embed ptx/*.gz
var images embed.FS

// OldestMajor is the compute capability, before the point, of the oldest devices that the kernels
// are for: they need its matrix instructions of bfloat16, and its asynchronous copies.
const OldestMajor = 8

// ID is a kernel.
type ID int

// Name is what the kernel is called in its file.
func (k ID) Name() string { return names[k] }

// File is the name of the file that the kernel is in.
func (k ID) File() string { return files[k] }

// Files lists the files of kernels.
func Files() []string {
	list := slices.Clone(files[:])
	slices.Sort(list)
	return slices.Compact(list)
}

// PTX is a file's kernels, for any architecture from sm_80 on; it ends with a zero byte, as drivers
// want it.
func PTX(file string) ([]byte, error) {
	packed, err := images.ReadFile("ptx/" + file + ".ptx.gz")
	if err != nil {
		return nil, fmt.Errorf("kernels of %s: %w", file, err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("kernels of %s: %w", file, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("kernels of %s: %w", file, err)
	}
	return append(text, 0), nil
}
