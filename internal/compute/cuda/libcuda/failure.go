package libcuda

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// Codes of CUresult that only this package knows.
const (
	deviceUnavailable    = 46
	ecc                  = driver.UncorrectableECC
	jitCompilerNotFound  = 221
	operatingSystem      = 304
	outOfResources       = 701
	primaryContextActive = 708
	systemNotReady       = 802
	driverMismatch       = 803
	compatNotSupported   = 804
	captureUnsupported   = 900
	captureInvalidated   = 901
)

// errClosed is what calls of a closed context return.
var errClosed = errors.New("the context of the CUDA device is closed")

// failure is the error of a code. Of what is known of the call and what the code advises, either
// may be "".
func (l *Library) failure(e export, code int32, known string) *driver.Error {
	return &driver.Error{
		Call: e.String(), Code: int(code), Name: l.errorName(code),
		Detail: joined(known, l.advice(int(code))),
	}
}

// refused is the error of a driver that does not start.
func (l *Library) refused(e export, code int32) error {
	known := "the driver is " + l.path
	switch code {
	case driver.StubLibrary:
		known = l.path + " is a stub library, which programs are linked with, and no driver: " +
			"remove its folder from LD_LIBRARY_PATH, or name NVIDIA's libcuda.so.1"
	case driver.NoDevice:
		known = "no CUDA device: "
		if v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
			known += fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q; ", v)
		}
		known += "nvidia-smi -L lists those of the machine; a container has to be started with " +
			"them (docker run --gpus all, or nvidia.com/gpu in a pod's limits)"
	}
	return l.failure(e, code, known)
}

// advice says of a code what it means to a user, and what to do; "" where the name says it all.
func (l *Library) advice(code int) string {
	switch code {
	case deviceUnavailable:
		return "another process has the device for itself (compute mode EXCLUSIVE_PROCESS), or " +
			"MIG changed: nvidia-smi shows both"
	case driver.NoBinaryForGPU:
		return "the image has no code for this GPU"
	case ecc, driver.NVLinkUncorrectable:
		return "a fault of the hardware: the GPU has to be reset (nvidia-smi -q shows its errors)"
	case jitCompilerNotFound:
		return "libnvidia-ptxjitcompiler.so.1 is missing, which belongs to the driver: a " +
			"container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
	case driver.UnsupportedPTXVersion:
		return "the PTX is of a later CUDA than the driver's " + VersionText(l.version) +
			": update NVIDIA's driver"
	case operatingSystem, driver.Unknown:
		return "see the kernel's log (dmesg, lines with NVRM or Xid) and whether nvidia-smi works"
	case outOfResources:
		return "more registers or threads than the device has"
	case systemNotReady:
		return "NVIDIA's fabric manager does not run: nvidia-fabricmanager.service"
	case driverMismatch:
		return "the kernel's module and libcuda are of different versions: reboot after an " +
			"update of the driver, or start the container anew"
	case compatNotSupported:
		return "CUDA's compatibility package does not support this GPU: remove its folder " +
			"(/usr/local/cuda/compat) from LD_LIBRARY_PATH"
	case captureUnsupported, captureInvalidated:
		return "a call that cannot be captured in a graph"
	}
	if (&driver.Error{Code: code}).Sticky() {
		return "a kernel failed and the device's memory is lost: the process has to end " +
			"(CUDA_LAUNCH_BLOCKING=1 has the launch itself fail, which names the kernel)"
	}
	return ""
}

// joined are two clauses, of which either may be "".
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// sentence is a text of several lines in one.
func sentence(text string) string {
	var parts []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
