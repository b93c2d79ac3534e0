package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/cublaslt"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nccl"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nvml"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
)

// report is what probe finds. The names in JSON are read by scripts, and by eagleray.
type report struct {
	// Driver is the newest CUDA version that the driver supports, Library the file that it is.
	Driver  string `json:"driver,omitempty"`
	Library string `json:"library,omitempty"`
	// NVML is the file by which GPUs are measured, Release the driver's version as it says;
	// Unmeasured is why there is none.
	NVML       string `json:"nvml,omitempty"`
	Release    string `json:"release,omitempty"`
	Unmeasured string `json:"unmeasured,omitempty"`
	// NCCL is the file by which ranks sum that do not reach each other's memory, NCCLVersion its
	// version; WithoutNCCL is why there is none.
	NCCL        string `json:"nccl,omitempty"`
	NCCLVersion string `json:"nccl_version,omitempty"`
	WithoutNCCL string `json:"without_nccl,omitempty"`
	// CUBLASLt is the file that may compute products of many rows, CUBLASLtVersion its version;
	// WithoutCUBLASLt is why there is none.
	CUBLASLt        string `json:"cublaslt,omitempty"`
	CUBLASLtVersion string `json:"cublaslt_version,omitempty"`
	WithoutCUBLASLt string `json:"without_cublaslt,omitempty"`
	// Apart says that some devices do not reach the memory of another one.
	Apart   bool     `json:"apart,omitempty"`
	Devices []device `json:"devices"`
	// Repaired are handlers of signals that the driver left in a state that would have ended the
	// process.
	Repaired []string `json:"repaired,omitempty"`
	// Error is why no device can be used, and what to do.
	Error string `json:"error,omitempty"`
}

// device is one of them. Memory is in bytes; of a device that cannot be opened what is free is not
// known.
type device struct {
	Ordinal         int     `json:"ordinal"`
	Name            string  `json:"name"`
	UUID            string  `json:"uuid"`
	PCI             string  `json:"pci"`
	Arch            string  `json:"arch"`
	Multiprocessors int     `json:"multiprocessors"`
	SharedMemory    int     `json:"shared_memory"`
	L2              int     `json:"l2"`
	MemoryFree      *uint64 `json:"memory_free"`
	MemoryTotal     uint64  `json:"memory_total"`
	// Stop is why it cannot be used, "" if it can; Note is what limits its use.
	Stop string `json:"stop,omitempty"`
	Note string `json:"note,omitempty"`
}

// noDeviceError says that no device can be used, why, and what to do.
type noDeviceError struct{ reason string }

func (e *noDeviceError) Error() string { return e.reason }

func newProbe() *cobra.Command {
	var asJSON bool
	var path string
	c := &cobra.Command{
		Use:   "probe",
		Short: "List the GPUs, and what stands in the way of their use",
		Long: `probe loads NVIDIA's driver and opens each GPU for a moment. It prints the driver's
version and file, by what GPUs are measured for /metrics and by what ranks sum that do not reach
each other's memory (NCCL; EAGLERAY_NCCL names its file, and allows it between machines, where it
does not encrypt, or is off), what else may compute products of many rows (cuBLASLt;
EAGLERAY_CUBLASLT names its file, or is off), and of each GPU what it is, its memory, and what
stands in the way of its use. The exit code is 0 when a GPU can be used, and 3 when none can: the last line then says
why, and what to do.

  eagleray cuda probe
  eagleray cuda probe --json | jq '.devices[] | select(.stop == null) | .uuid'
  CUDA_VISIBLE_DEVICES=1 eagleray cuda probe`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := probe(path)
			if err != nil {
				r.Error = err.Error()
			}
			write := r.table
			if asJSON {
				write = r.json
			}
			if failed := write(c.OutOrStdout()); failed != nil {
				return failed
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the results as JSON")
	c.Flags().StringVar(&path, "libcuda", "",
		"the driver's libcuda.so.1 (default: the one that the system finds)")
	return c
}

// probe looks at all devices. The report is also good, as far as it goes, beside an error.
func probe(path string) (*report, error) {
	r := &report{Devices: []device{}}
	// Devices are opened in a thread, and closed in the same.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, err := libcuda.Open(path)
	if err != nil {
		return r, &noDeviceError{err.Error()}
	}
	r.Driver, r.Library = libcuda.VersionText(l.Version()), l.Path()
	if m, err := nvml.Open(""); err != nil {
		r.Unmeasured = err.Error()
	} else {
		r.NVML, r.Release = m.Path(), m.Driver()
	}
	r.lookForNCCL()
	r.lookForCUBLASLt()
	list, err := l.Devices()
	if err != nil {
		return r, &noDeviceError{err.Error()}
	}
	for ordinal, info := range list {
		r.Devices = append(r.Devices, examined(l, ordinal, info))
		for other := range ordinal {
			if ok, err := l.Reaches(ordinal, other); err != nil || !ok {
				r.Apart = true // where it is not known ranks find out
			}
		}
	}
	for _, x := range l.Repaired() {
		r.Repaired = append(r.Repaired, x.String())
	}
	return r, r.usable()
}

// lookForNCCL loads NCCL, as ranks do.
func (r *report) lookForNCCL() {
	l, err := nccl.OpenNamed()
	if err != nil {
		r.WithoutNCCL = err.Error()
		return
	}
	r.NCCL, r.NCCLVersion = l.Path(), driver.NCCLVersion(l.Version())
}

// lookForCUBLASLt loads cuBLASLt, as ranks do.
func (r *report) lookForCUBLASLt() {
	l, err := cublaslt.OpenNamed()
	if err != nil {
		r.WithoutCUBLASLt = err.Error()
		return
	}
	r.CUBLASLt, r.CUBLASLtVersion = l.Path(), driver.CUBLASLtVersion(l.Version())
}

// examined is a device, opened if it can be used.
func examined(d driver.Driver, ordinal int, info driver.Info) device {
	x := device{Ordinal: ordinal, Name: info.Name, UUID: info.UUID, PCI: info.PCI,
		Arch: info.Arch(), Multiprocessors: info.Multiprocessors, SharedMemory: info.Shared,
		L2: info.L2, MemoryTotal: info.Memory}
	if strings.HasPrefix(info.UUID, "MIG-") {
		x.Note = "part of a GPU (MIG), which exchanges no data with others: for groups of one rank"
	}
	if info.Major < kernels.OldestMajor {
		x.Stop = fmt.Sprintf("%s is too old: a GPU of sm_%d0 (A100) or later is needed", x.Arch,
			kernels.OldestMajor)
		return x
	}
	free, err := freeMemory(d, ordinal)
	if err != nil {
		x.Stop = err.Error()
		return x
	}
	x.MemoryFree = &free
	return x
}

// freeMemory opens a device to ask how much of its memory is free.
func freeMemory(d driver.Driver, ordinal int) (uint64, error) {
	c, err := d.Open(ordinal)
	if err != nil {
		return 0, err
	}
	free, _, err := c.MemInfo()
	if closed := c.Close(); err == nil {
		err = closed
	}
	return free, err
}

// usable is an error when no device can be used.
func (r *report) usable() error {
	var reasons []string
	for _, d := range r.Devices {
		if d.Stop == "" {
			return nil
		}
		reasons = append(reasons, fmt.Sprintf("GPU %d (%s): %s", d.Ordinal, d.Name, d.Stop))
	}
	return &noDeviceError{"no GPU can be used: " + strings.Join(reasons, "; ")}
}

func (r *report) json(to io.Writer) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// table prints what there is for people: nothing of a driver that was not loaded, for the error
// says it all.
func (r *report) table(to io.Writer) error {
	if r.Library == "" {
		return nil
	}
	fmt.Fprintf(to, "driver: CUDA %s, %s\n", r.Driver, r.Library)
	if r.Unmeasured == "" {
		fmt.Fprintf(to, "measured by NVML of driver %s, %s\n", r.Release, r.NVML)
	} else {
		fmt.Fprintf(to, "not measured: %s\n", r.Unmeasured)
	}
	if r.WithoutNCCL == "" {
		fmt.Fprintf(to, "NCCL %s, %s\n", r.NCCLVersion, r.NCCL)
	} else {
		fmt.Fprintf(to, "without NCCL: %s\n", r.WithoutNCCL)
	}
	if r.WithoutCUBLASLt == "" {
		fmt.Fprintf(to, "cuBLASLt %s, %s\n", r.CUBLASLtVersion, r.CUBLASLt)
	} else {
		fmt.Fprintf(to, "without cuBLASLt: %s\n", r.WithoutCUBLASLt)
	}
	for _, line := range r.Repaired {
		fmt.Fprintf(to, "repaired: %s\n", line)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tNAME\tARCH\tSMS\tMEMORY FREE\tTOTAL\tPCI\tUUID\tUSABLE")
	for _, d := range r.Devices {
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", d.Ordinal, d.Name, d.Arch,
			d.Multiprocessors, d.free(), gibibytes(d.MemoryTotal), d.PCI, d.UUID, d.verdict())
	}
	return w.Flush()
}

func (d *device) free() string {
	if d.MemoryFree == nil {
		return "unknown"
	}
	return gibibytes(*d.MemoryFree)
}

// verdict is whether a device can be used, and for what.
func (d *device) verdict() string {
	switch {
	case d.Stop != "":
		return "no: " + d.Stop
	case d.Note != "":
		return "yes: " + d.Note
	}
	return "yes"
}

func gibibytes(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
