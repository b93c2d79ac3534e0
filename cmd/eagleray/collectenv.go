package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// newCollectEnv prints what a report of a fault should say of the machine.
func newCollectEnv() *cobra.Command {
	var python string
	c := &cobra.Command{
		Use:   "collect-env",
		Short: "Print what a report of a fault should say of this machine",
		Long: `collect-env prints versions, the processor and its features, memory and its limits, and the
Ray and Python that would be used. Values of variables that may be secrets are not shown.`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			return collectEnv(c.Context(), os.Stdout, python)
		},
	}
	c.Flags().StringVar(&python, "ray-python", "",
		"Python that has Ray (default: that of $VIRTUAL_ENV, else python3)")
	config.Paths(c.Flags(), config.PathFile, "ray-python")
	cli.ConfigFlag(c)
	return c
}

func collectEnv(ctx context.Context, to io.Writer, python string) error {
	out := bufio.NewWriter(to)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-18s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("version", "%s", version())
	line("built with", "%s for %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	line("system", "%s, kernel %s", systemName(), kernel())
	line("processor", "%s", cmp.Or(field("/proc/cpuinfo", "model name"), "unknown"))
	line("features", "%s", cmp.Or(strings.Join(features(), " "), "unknown"))
	line("cores", "%d usable of %d", machine.Cores(), runtime.NumCPU())
	line("memory", "%s in all, %s available to this process",
		cmp.Or(field("/proc/meminfo", "MemTotal"), "unknown"), available())
	for _, name := range []string{"memory.max", "memory.swap.max", "cpu.max",
		"cpuset.cpus.effective", "pids.max", // version 2, then version 1
		"memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
		"cpuset/cpuset.cpus", "pids/pids.max"} {
		if v := firstLine("/sys/fs/cgroup/" + name); v != "" {
			line("cgroup "+name, "%s", v)
		}
	}
	line("shared memory", "%s", cmp.Or(shared(), "unknown"))
	line("open files", "%s", openFiles())
	pythonInfo(ctx, line, python)
	variables(line)
	return out.Flush()
}

// field is the value of a line "name : value" of a file, "" when it has none.
func field(path, name string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func firstLine(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	return strings.TrimSpace(line)
}

func systemName() string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return runtime.GOOS
	}
	for l := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return runtime.GOOS
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// features are those that choose the kernels.
func features() []string {
	x, a := &cpu.X86, &cpu.ARM64
	var found []string
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"avx", x.HasAVX}, {"avx2", x.HasAVX2}, {"fma", x.HasFMA}, {"avx512f", x.HasAVX512F},
		{"avx512bw", x.HasAVX512BW}, {"avx512vl", x.HasAVX512VL},
		{"avx512vnni", x.HasAVX512VNNI}, {"avx512bf16", x.HasAVX512BF16},
		{"amx-bf16", x.HasAMXBF16}, {"asimd", a.HasASIMD}, {"asimdhp", a.HasASIMDHP},
		{"sve", a.HasSVE},
	} {
		if f.has {
			found = append(found, f.name)
		}
	}
	return found
}

func available() string {
	n, ok := machine.Memory().Left()
	if !ok {
		return "unknown"
	}
	return fmt.Sprintf("%d MB", n>>20)
}

func shared() string {
	var s unix.Statfs_t
	if unix.Statfs("/dev/shm", &s) != nil {
		return ""
	}
	return fmt.Sprintf("%d MB free in /dev/shm (not needed)", s.Bavail*uint64(s.Bsize)>>20)
}

func openFiles() string {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d at most", r.Cur)
}

// pythonTimeout is how long Python may take to say what it is.
const pythonTimeout = 20 * time.Second

// pythonInfo asks the Python that Ray would be used through what it and its Ray are.
func pythonInfo(ctx context.Context, line func(string, string, ...any), python string) {
	path, err := ray.FindPython(python)
	if err != nil {
		line("python", "none: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pythonTimeout)
	defer cancel()
	const ask = `import sys, importlib.metadata as m
print(sys.version.split()[0])
try: print(m.version("ray"))
except m.PackageNotFoundError: print("none")`
	raw, err := exec.CommandContext(ctx, path, "-c", ask).Output()
	if err != nil {
		line("python", "%s does not run: %v", path, err)
		return
	}
	answer := strings.Fields(string(raw))
	if len(answer) != 2 {
		line("python", "%s answers %q", path, raw)
		return
	}
	line("python", "%s, %s", answer[0], path)
	line("ray", "%s", answer[1])
}

// variables are those that change what the program does; values that may be secrets stay out.
func variables(line func(string, string, ...any)) {
	prefixes := []string{config.Env, "RAY_", "HF_", "VLLM_", "GOMAXPROCS", "GOMEMLIMIT", "GODEBUG"}
	for _, v := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(v, "=")
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if !slices.ContainsFunc(prefixes, begins) {
			continue
		}
		if maybeSecret(name, value) {
			value = "(set)"
		}
		line("variable", "%s=%s", name, value)
	}
}

// maybeSecret tells of a variable that its value is not for the eyes of others.
func maybeSecret(name, value string) bool {
	for _, part := range []string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH",
		"RUNTIME_ENV"} {
		if strings.Contains(strings.ToUpper(name), part) {
			return true
		}
	}
	return strings.Contains(value, "@") // as in an address with a password
}
