package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Machine is what the checks of this machine look at; tests give another one.
type Machine struct {
	Root fs.FS
	// Vectors says that the processor has the instructions of the fast kernels.
	Vectors bool
	Cores   int
	// Topology is what the ranks' threads are bound to.
	Topology machine.Topology
	// Memory is what bounds that of this process and of its ranks, Plan what a server takes of it.
	Memory func() memory.Bounds
	Plan   func(ctx context.Context, c *config.Config) (*memory.Plan, error)
	// Threads is how many more threads can be started; false is unknown.
	Threads func() (machine.Threads, bool)
	// OpenFiles is the limit of descriptors, Niceness that of this process.
	OpenFiles uint64
	Niceness  int
	// Free is the room on the file system of a path, Size all that it has.
	Free, Size func(path string) (bytes uint64, err error)
	// Listen tries an address.
	Listen func(host string, port int) error
	// GPUs are those of this machine.
	GPUs func(ctx context.Context) (*gpus.Found, error)
	// Addresses are this machine's own.
	Addresses func() ([]net.Addr, error)
	// Model looks for the model.
	Model func(ctx context.Context, q Question) Model
}

// ThisMachine is the machine that the program runs on.
func ThisMachine() Machine {
	m := Machine{Root: os.DirFS("/"), Vectors: cpu.X86.HasAVX2 && cpu.X86.HasFMA,
		Cores: machine.Cores(), Topology: machine.ReadTopology(),
		Memory: machine.Memory, Plan: plan, Threads: machine.ThreadsLeft,
		Addresses: net.InterfaceAddrs, GPUs: gpus.Probe,
		Niceness: machine.Niceness(),
		Model:    model,
		Free: func(path string) (uint64, error) {
			var s unix.Statfs_t
			err := unix.Statfs(existing(path), &s)
			return s.Bavail * uint64(s.Bsize), err
		},
		Size: func(path string) (uint64, error) {
			var s unix.Statfs_t
			err := unix.Statfs(path, &s)
			return s.Blocks * uint64(s.Bsize), err
		},
		Listen: func(host string, port int) error {
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err == nil {
				err = l.Close()
			}
			return err
		}}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		m.OpenFiles = r.Cur
	}
	return m
}

// plan is that of a server's memory here.
func plan(ctx context.Context, c *config.Config) (*memory.Plan, error) {
	checked, err := open.Check(ctx, open.Options{Config: new(*c), Elsewhere: true})
	return checked.Plan, err
}

// existing is the nearest folder above a path that there is.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// The bounds of the checks.
const (
	fewFiles, manyFiles  = 256, 4096
	littleRoom, someRoom = 1 << 30, 20 << 30
	littleMemory         = 1 << 30
)

// Checks are those of this machine for a configuration. cache is where models from a Hub are kept.
func (m *Machine) Checks(c *config.Config, cache string) []Check {
	p := &c.Parallel
	ranks := p.Layout().World() * p.Engines()
	here := p.Backend != "ray"
	check := func(name string, f func() Result) Check {
		return Check{name, func(context.Context) Result { return f() }}
	}
	list := []Check{
		check("processor", func() Result { return m.processor(p.CPUISA) }),
		check("cores", func() Result { return m.cores(here, ranks, p) }),
		{"memory", func(ctx context.Context) Result { return m.memory(ctx, c) }},
		check("huge pages", m.hugePages),
		check("open files", m.openFiles),
		check("threads", func() Result { return m.threads(here, ranks, p.CPUThreads) }),
		check("niceness", m.niceness),
		check("disk", func() Result { return m.disk(c.Model.Path, cache) }),
		check("shared memory", func() Result { return m.sharedMemory(&c.Cache.Offloading) }),
		check("port", func() Result { return m.port(&c.Server) }),
		check("address", func() Result { return m.address(p.Ray.NodeIP) }),
	}
	if p.Device == config.CUDA && here {
		list = append(list, Check{"gpus", func(ctx context.Context) Result {
			return m.gpus(ctx, ranks/max(1, p.Nodes.Count))
		}})
	}
	return list
}

func (m *Machine) processor(asked string) Result {
	if !m.Vectors {
		return bad(Warn, "no AVX2 and FMA|products run in portable Go, many times slower|use an "+
			"x86-64 processor of 2013 or later, or check that the hypervisor passes its features "+
			"on")
	}
	return ok("has AVX2 and FMA; kernels are %s", open.Kernels(asked))
}

func (m *Machine) cores(here bool, ranks int, p *config.Parallel) Result {
	threads := p.CPUThreads
	need := ranks * max(1, threads)
	shares, err := m.Topology.Plan(p.Demand())
	switch {
	case here && err != nil:
		return bad(Fail, "--cpu-bind %q: %v|the ranks cannot be bound to these|list a set for "+
			"each rank, or say --cpu-bind auto", p.CPUBind, err)
	case here && need > m.Cores:
		return bad(Warn, "%d usable (affinity and cgroup quota), %d ranks of %d threads|the "+
			"ranks wait for each other|lower --tensor-parallel-size or --cpu-threads, or raise "+
			"the quota", m.Cores, ranks, max(1, threads))
	case m.Cores == 1:
		return bad(Warn, "1 usable|requests and the model share it|give the container two or more")
	}
	r := ok("%d usable", m.Cores)
	if here {
		r.Details = bindings(shares)
	}
	return r
}

// bindings are the lines of a table of what each rank computes on.
func bindings(shares []machine.Share) (lines []string) {
	for i, s := range shares {
		lines = append(lines, fmt.Sprintf("rank %d: %d threads, bound to %s", i, s.Threads, s))
	}
	return lines
}

// memory compares what a server takes with what may be used. What else is wrong with the model the
// start of the workers says.
func (m *Machine) memory(ctx context.Context, c *config.Config) Result {
	free, known := m.Memory().Left()
	if !known {
		return bad(Warn, "unknown|/proc/meminfo cannot be read|mount /proc")
	}
	p, err := m.Plan(ctx, c)
	var misfit *memory.Misfit
	switch {
	case errors.As(err, &misfit):
		r := bad(Fail, "%s|the kernel would kill the workers|%s",
			strings.ReplaceAll(misfit.What(), "|", "/"), strings.Join(misfit.Ways(), "; or "))
		r.Details = p.Table()
		return r
	case err == nil && p != nil && len(p.Hosts) > 0:
		need := p.Hosts[0].Parts(p.Blocks).Total()
		r := ok("%d MB available, %d MB planned for", free>>20, need>>20)
		r.Details = p.Table()
		return r
	case free < littleMemory:
		return bad(Warn, "%d MB available|hardly any model fits|raise the limit of the container",
			free>>20)
	}
	return ok("%d MB available", free>>20)
}

func (m *Machine) hugePages() Result {
	raw, err := fs.ReadFile(m.Root, "sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return ok("not this kernel's")
	}
	if strings.Contains(string(raw), "[never]") {
		return bad(Warn, "transparent huge pages are off|large weights take more time to read|"+
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
	return ok("%s", strings.TrimSpace(string(raw)))
}

func (m *Machine) openFiles() Result {
	switch {
	case m.OpenFiles < fewFiles:
		return bad(Fail, "%d at most|connections and workers run out of them|ulimit -n %d, or "+
			"LimitNOFILE in the unit", m.OpenFiles, manyFiles)
	case m.OpenFiles < manyFiles:
		return bad(Warn, "%d at most|connections are limited below that|ulimit -n %d or more",
			m.OpenFiles, manyFiles)
	}
	return ok("%d at most", m.OpenFiles)
}

func (m *Machine) threads(here bool, ranks, each int) Result {
	if !here {
		ranks = 0
	}
	wanted := machine.ThreadsWanted(ranks, max(m.Cores, ranks*each), ranks > 1)
	left, known := m.Threads()
	switch {
	case !known:
		return ok("no limit is known")
	case left.Left < wanted*3/4:
		return bad(Fail, "%d more can be started (%s), about %d are needed|a start fails, and "+
			"what runs ends when it needs another one|raise that limit: --pids-limit of a "+
			"container, TasksMax of a unit, ulimit -u", left.Left, left.Limit, wanted)
	case left.Left < wanted*3/2:
		return bad(Warn, "%d more can be started (%s), about %d are needed|a rank that dies may "+
			"not be replaced|raise that limit: --pids-limit of a container, TasksMax of a unit, "+
			"ulimit -u", left.Left, left.Limit, wanted)
	}
	return ok("%d more can be started (%s)", left.Left, left.Limit)
}

func (m *Machine) niceness() Result {
	if m.Niceness > 0 {
		return bad(Warn, "%d|any busy process goes before this one|start it without nice",
			m.Niceness)
	}
	return ok("%d", m.Niceness)
}

func (m *Machine) disk(model, cache string) Result {
	if _, err := os.Stat(model); err == nil {
		return ok("not needed, %s is here", model)
	}
	free, err := m.Free(cache)
	switch {
	case err != nil:
		return bad(Warn, "%v|models of a Hub cannot be kept in %s|set --download-dir or HF_HOME",
			err, cache)
	case free < littleRoom:
		return bad(Fail, "%d MB free in %s|a download ends half-way|make room, or set "+
			"--download-dir", free>>20, cache)
	case free < someRoom:
		return bad(Warn, "%d GB free in %s|a model of some billion parameters does not fit|make "+
			"room, or set --download-dir", free>>30, cache)
	}
	return ok("%d GB free in %s", free>>30, cache)
}

// sharedMemory is needed for files of KV blocks alone, and containers have little of it; for other
// engines it always is a problem.
func (m *Machine) sharedMemory(o *config.Offloading) Result {
	if o.Bytes() == 0 || o.Dir != "" {
		return ok("/dev/shm is not needed: memory between processes has no name")
	}
	size, err := m.Size("/dev/shm")
	if err != nil || size < uint64(o.Bytes()) {
		return bad(Warn, "/dev/shm has %d MiB, --kv-offloading-size is %v GiB|fewer KV blocks are "+
			"kept|make it larger (docker run --shm-size), or set --kv-offloading-dir", size>>20,
			o.GiB)
	}
	return ok("/dev/shm has %d MiB for --kv-offloading-size", size>>20)
}

func (m *Machine) port(s *config.Server) Result {
	host, port := s.Host, s.Port
	switch {
	case s.Transport.UDS != "":
		return ok("none is needed by --uds %s", s.Transport.UDS)
	case port == 0:
		return ok("any free one")
	}
	if err := m.Listen(host, port); err != nil {
		return bad(Fail, "--host %s --port %d: %v|the API cannot be served there|"+
			"stop what listens there, or choose another --port", host, port, err)
	}
	return ok("%s", net.JoinHostPort(host, strconv.Itoa(port)))
}

// address checks that what other machines are told is an address of this one.
func (m *Machine) address(told string) Result {
	if told == "" {
		return skip()
	}
	all, err := m.Addresses()
	if err != nil {
		return bad(Warn, "%v|the interfaces cannot be listed|see ip address", err)
	}
	var own []string
	for _, a := range all {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil {
			if ip.Equal(net.ParseIP(told)) {
				return ok("%s is this machine's", told)
			}
			own = append(own, ip.String())
		}
	}
	return bad(Fail, "--node-ip %s is not one of %s|workers of other machines cannot "+
		"connect|give an address of this machine on their network", told, strings.Join(own, ", "))
}
