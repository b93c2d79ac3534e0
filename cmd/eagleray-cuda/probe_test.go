package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/cublaslt/cublaslttest"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nccl/nccltest"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nvml/nvmltest"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/libcudatest"
)

// asProgram makes the test binary be the program.
const asProgram = "EAGLERAY_CUDA_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// execute runs a command line of the program with more variables to its end.
func execute(t *testing.T, environment []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(append(os.Environ(), asProgram+"=1"), environment...)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	exit := (*exec.ExitError)(nil)
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), errOut.String()
}

// TestProbe probes a driver that the dynamic linker finds by its name.
func TestProbe(t *testing.T) {
	t.Parallel()
	path := libcudatest.Build(t, t.TempDir())
	nvmltest.Build(t, filepath.Dir(path))
	nccltest.Build(t, filepath.Dir(path))
	cublaslttest.Build(t, filepath.Dir(path))
	environment := []string{"LD_LIBRARY_PATH=" + filepath.Dir(path),
		"LIBCUDA_TEST=devices=3 signal_at_init=12"}
	code, stdout, stderr := execute(t, environment, "probe")
	want := "driver: CUDA 12.9, PATH\n" +
		"measured by NVML of driver 570.86.15, NVML\n" +
		"NCCL 2.27.3, NCCL\n" +
		"cuBLASLt 13.1.0, CUBLASLT\n" +
		"repaired: SIGUSR2: its handler, of PATH, had no SA_ONSTACK: added\n" +
		"GPU  NAME                              ARCH   SMS  MEMORY FREE  TOTAL      " +
		"PCI           UUID                                      USABLE\n" +
		"0    NVIDIA H200                       sm_90  132  140.4 GiB    140.4 GiB  " +
		"0000:3b:00.0  GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedeeef  yes\n" +
		"1    NVIDIA A100-SXM4-40GB MIG 1g.5gb  sm_80  14   4.8 GiB      4.8 GiB    " +
		"0000:5e:00.0  MIG-10111213-1415-1617-1819-1a1b1c1d1e1f  " +
		"yes: part of a GPU (MIG), which exchanges no data with others: for groups of one rank\n" +
		"2    Tesla T4                          sm_75  40   unknown      14.8 GiB   " +
		"0000:af:00.0  GPU-e2e3e4e5-e6e7-e8e9-eaeb-ecedeeeff0f1  " +
		"no: sm_75 is too old: a GPU of sm_80 (A100) or later is needed\n"
	files := strings.NewReplacer(path, "PATH", filepath.Dir(path)+"/libnvidia-ml.so.1", "NVML",
		filepath.Dir(path)+"/libnccl.so.2", "NCCL",
		filepath.Dir(path)+"/libcublasLt.so.13", "CUBLASLT")
	if got := files.Replace(stdout); code != 0 || got != want || stderr != "" {
		t.Errorf("exit code %d, %s\n%s\ninstead of\n%s", code, stderr, got, want)
	}
}

func TestProbeJSON(t *testing.T) {
	t.Parallel()
	path := libcudatest.Build(t, t.TempDir())
	nvmltest.Build(t, filepath.Dir(path))
	code, stdout, stderr := execute(t, []string{"LD_LIBRARY_PATH=" + filepath.Dir(path),
		"NVML_TEST=nvmlInit_v2=9", "EAGLERAY_NCCL=off", "EAGLERAY_CUBLASLT=off"}, "probe", "--json",
		"--libcuda", path)
	want := `{
  "driver": "12.9",
  "library": "PATH",
  "unmeasured": "nvmlInit_v2 of NVML: Driver Not Loaded (9)",
  "without_nccl": "EAGLERAY_NCCL leaves it out",
  "without_cublaslt": "EAGLERAY_CUBLASLT leaves it out",
  "devices": [
    {
      "ordinal": 0,
      "name": "NVIDIA H200",
      "uuid": "GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedeeef",
      "pci": "0000:3b:00.0",
      "arch": "sm_90",
      "multiprocessors": 132,
      "shared_memory": 232448,
      "l2": 62914560,
      "memory_free": 150754820096,
      "memory_total": 150754820096
    },
    {
      "ordinal": 1,
      "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
      "uuid": "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f",
      "pci": "0000:5e:00.0",
      "arch": "sm_80",
      "multiprocessors": 14,
      "shared_memory": 166912,
      "l2": 5242880,
      "memory_free": 5100273664,
      "memory_total": 5100273664,
      "note": "part of a GPU (MIG), which exchanges no data with others: for groups of one rank"
    }
  ]
}
`
	files := strings.NewReplacer(path, "PATH", filepath.Dir(path)+"/libnvidia-ml.so.1", "NVML")
	if got := files.Replace(stdout); code != 0 || got != want || stderr != "" {
		t.Errorf("exit code %d, %s\n%s\ninstead of\n%s", code, stderr, got, want)
	}
}

// TestNoDevice wants the exit code 3 and one line, that says why and what to do, of every machine
// without a device that can be used.
func TestNoDevice(t *testing.T) {
	t.Parallel()
	path := libcudatest.Build(t, t.TempDir())
	for settings, want := range map[string]string{
		"cuInit=34":  "cuInit: CUDA_ERROR_STUB_LIBRARY (34): PATH is a stub library, ",
		"cuInit=100": "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA device: ",
		"version=10020": "the driver PATH is for CUDA 10.2, and 11.0 is the least that is " +
			"needed: update NVIDIA's driver\n",
		"cuDevicePrimaryCtxRetain=46 devices=1": "no GPU can be used: GPU 0 (NVIDIA H200): " +
			"cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46): device 0; another ",
		"cuMemGetInfo_v2=2 devices=1": "no GPU can be used: GPU 0 (NVIDIA H200): " +
			"cuMemGetInfo_v2: CUDA_ERROR_OUT_OF_MEMORY (2)\n",
		"cuDeviceGetName=101": "device 0: cuDeviceGetName: CUDA_ERROR_INVALID_DEVICE (101)\n",
	} {
		for _, flag := range []string{"--json=false", "--json"} {
			code, stdout, stderr := execute(t, []string{"LIBCUDA_TEST=" + settings}, "probe", flag,
				"--libcuda", path)
			got := strings.ReplaceAll(stderr, path, "PATH")
			if code != exitNoDevice || !strings.HasPrefix(got, "eagleray cuda: "+want) ||
				strings.Count(got, "\n") != 1 {
				t.Errorf("%s: exit code %d, %s", settings, code, stderr)
			}
			var r report
			if flag != "--json" {
				continue
			}
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Devices == nil ||
				"eagleray cuda: "+r.Error+"\n" != stderr {
				t.Errorf("%s: %v: %s", settings, err, stdout)
			}
		}
	}
}

// TestNoLibrary needs no library to be built.
func TestNoLibrary(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(t.TempDir(), "libcuda.so.1")
	code, stdout, stderr := execute(t, nil, "probe", "--libcuda", absent)
	want := "eagleray cuda: no CUDA driver was found: install NVIDIA's driver, or start the " +
		"container with its GPUs (docker run --gpus all, or nvidia.com/gpu in a pod's limits); " +
		"tried " + absent + " (no such file)\n"
	if code != exitNoDevice || stdout != "" || stderr != want {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"probe --device", "probe 0", "prob", "probe --json=perhaps"} {
		code, stdout, stderr := execute(t, nil, strings.Fields(line)...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "eagleray cuda: ") {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
	for _, line := range []string{"", "--help", "probe --help"} {
		if code, stdout, stderr := execute(t, nil, strings.Fields(line)...); code != 0 ||
			!strings.Contains(stdout, "eagleray cuda probe --json") {
			t.Errorf("%q: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
}
