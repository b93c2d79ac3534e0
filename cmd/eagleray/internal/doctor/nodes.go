package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// most is how many nodes or connections a line names.
const most = 4

// Results judges what was found out of the nodes of a cluster, for a configuration.
func (f *Found) Results(c *config.Config) []Result {
	var results []Result
	add := func(name string, r Result) {
		r.Check = name
		results = append(results, r)
	}
	add("nodes", f.answered())
	add("versions", f.versions())
	add("node clocks", f.clocks())
	add("addresses", f.addresses())
	add("network", f.network())
	add("model bytes", f.model())
	add("devices", f.devices(c))
	add("node memory", f.memory(c))
	add("node disks", f.disks())
	return results
}

// there are the nodes that answered.
func (f *Found) there() []Node {
	return slices.DeleteFunc(slices.Clone(f.Nodes), func(n Node) bool { return n.Lost != nil })
}

// of says something of each node for which there is something to say.
func (f *Found) of(say func(n *Node) string) []string {
	var all []string
	for _, n := range f.there() {
		if text := say(&n); text != "" {
			all = append(all, n.Name+" "+text)
		}
	}
	return all
}

// some are the first of a list.
func some(list []string) string {
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

func (f *Found) answered() Result {
	var lost []string
	for _, n := range f.Nodes {
		if n.Lost != nil {
			lost = append(lost, n.Name+": "+plain(n.Lost))
		}
	}
	if lost != nil {
		return bad(Fail, "%d of %d nodes answer; not %s|no rank can run there|start the nodes, "+
			"or mend what keeps them from this one", len(f.Nodes)-len(lost), len(f.Nodes),
			some(lost))
	}
	names := make([]string, len(f.Nodes))
	for i, n := range f.Nodes {
		names[i] = n.Name
	}
	return ok("%d of %d answer: %s", len(names), len(names), some(names))
}

// plain is an error within a line of a result, whose parts are divided by a mark.
func plain(err error) string { return strings.ReplaceAll(err.Error(), "|", "/") }

func (f *Found) versions() Result {
	zero := f.Nodes[0].Facts
	wrong := f.of(func(n *Node) string {
		switch {
		case n.Facts.Arch != zero.Arch:
			return "has a processor of " + n.Facts.Arch + ", not " + zero.Arch
		case n.Facts.Program != zero.Program:
			return fmt.Sprintf("runs eagleray %s (%s), not %s (%s)", n.Facts.Version,
				n.Facts.Program, zero.Version, zero.Program)
		case n.Ray != nil && f.Ray != "" && n.Ray.Ray != f.Ray:
			return "runs Ray " + n.Ray.Ray + ", not " + f.Ray
		case n.Ray != nil && f.Python != "" && minor(n.Ray.Python) != minor(f.Python):
			return "runs Python " + n.Ray.Python + ", not " + f.Python
		}
		return ""
	})
	if wrong != nil {
		return bad(Fail, "%s|ranks of different programs do not understand each other, and Ray "+
			"refuses mixed versions|install the same on every node", some(wrong))
	}
	text := fmt.Sprintf("eagleray %s (%s) on %s", zero.Version, zero.Program, zero.Arch)
	if f.Ray != "" {
		text += ", Ray " + f.Ray + ", Python " + f.Python
	}
	old := f.of(func(n *Node) string {
		if n.Facts.Vectors != zero.Vectors {
			return "has other instruction sets"
		}
		return ""
	})
	if old != nil {
		return bad(Warn, "%s|the slowest sets the pace, and bits depend on the layout|--cpu-isa "+
			"with what all have, or leave these nodes out", some(old))
	}
	return ok("%s on every node", text)
}

// minor is a version without its last number.
func minor(version string) string {
	if i := strings.LastIndexByte(version, '.'); i > 0 && strings.Count(version, ".") > 1 {
		return version[:i]
	}
	return version
}

func (f *Found) clocks() Result {
	var widest time.Duration
	wrong := f.of(func(n *Node) string {
		off := max(n.Skew, -n.Skew) - n.Trip/2
		widest = max(widest, off)
		if off > maxSkew {
			return fmt.Sprintf("by %+.1f s", n.Skew.Seconds())
		}
		return ""
	})
	if wrong != nil {
		return bad(Warn, "%s|certificates and logs of the nodes disagree on the time|run chrony "+
			"or ntpd on every node", some(wrong))
	}
	return ok("within %v of this one's", widest.Round(time.Millisecond))
}

func (f *Found) addresses() Result {
	strange := f.of(func(n *Node) string {
		if n.Facts.Interface == "" {
			return fmt.Sprintf("(%s) has only %s", n.Facts.Address, some(n.Facts.Interfaces))
		}
		return ""
	})
	if strange != nil {
		return bad(Fail, "%s|the others are told an address at which it is not|start Ray with "+
			"--node-ip-address, or give --node-ip or --master-addr, with an address of the "+
			"node's own", some(strange))
	}
	sizes := map[int]bool{}
	each := f.of(func(n *Node) string {
		sizes[n.Facts.MTU] = true
		return fmt.Sprintf("%s at %s, MTU %d", n.Facts.Interface, n.Facts.Address, n.Facts.MTU)
	})
	if len(sizes) > 1 {
		return bad(Warn, "%s|larger packets of one side may be dropped on their way|give the "+
			"interfaces one MTU", some(each))
	}
	return ok("%s", some(each))
}

func (f *Found) network() Result {
	var broken []string
	var slowest time.Duration
	tried, dead := 0, map[[2]int]bool{}
	for i, n := range f.Nodes {
		if n.Deaf != nil {
			broken = append(broken, n.Name+" cannot listen: "+plain(n.Deaf))
		}
		for _, j := range slices.Sorted(maps.Keys(n.Contacts)) {
			tried++
			slowest = max(slowest, n.Contacts[j].Trip)
			dead[[2]int{i, j}] = n.Contacts[j].Error != ""
		}
	}
	for i, n := range f.Nodes {
		for _, j := range slices.Sorted(maps.Keys(n.Contacts)) {
			if !dead[[2]int{i, j}] {
				continue
			}
			line := fmt.Sprintf("%s → %s: %s", n.Name, f.Nodes[j].Name,
				strings.ReplaceAll(n.Contacts[j].Error, "|", "/"))
			if back, asked := dead[[2]int{j, i}]; asked && !back {
				line += " (the other direction works)"
			}
			broken = append(broken, line)
		}
	}
	if broken != nil {
		return bad(Fail, "%d of %d connections: %s|ranks of these nodes wait for each other in "+
			"vain|open the TCP ports between the nodes (the driver's with --queue-port-range), "+
			"in both directions", len(broken), tried, some(broken))
	}
	if tried == 0 {
		return ok("there is one node")
	}
	return ok("%d connections over TLS, each direction of each pair; the slowest takes %v there "+
		"and back", tried, slowest.Round(10*time.Microsecond))
}

func (f *Found) model() Result {
	zero := f.Nodes[0].Facts.Model
	wrong := f.of(func(n *Node) string {
		m := n.Facts.Model
		if m.Error != "" || m.Later || zero.Files == nil {
			return strings.ReplaceAll(m.Error, "|", "/")
		}
		for _, name := range slices.Sorted(maps.Keys(zero.Files)) {
			switch m.Files[name] {
			case zero.Files[name]:
			case "":
				return "has no " + name
			default:
				return fmt.Sprintf("has another %s (SHA-256 %s, not %s)", name, m.Files[name],
					zero.Files[name])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(m.Files)) {
			if zero.Files[name] == "" {
				return "has a " + name + " more"
			}
		}
		return ""
	})
	if wrong != nil {
		return bad(Fail, "%s|ranks there do not start, or compute another model|copy the folder "+
			"to the same path of every node, or serve it from a file system that all share",
			some(wrong))
	}
	later := f.of(func(n *Node) string {
		if n.Facts.Model.Later {
			return "has it not yet"
		}
		return ""
	})
	if later != nil {
		return bad(Warn, "%s|a start waits for its download|start once, or copy the cache",
			some(later))
	}
	if zero.Files == nil {
		return ok("the built-in model is part of the program")
	}
	return ok("%d files, %d MB, with one SHA-256 on every node", len(zero.Files), zero.Bytes>>20)
}

// devices checks that what Ray gives to ranks is there.
func (f *Found) devices(c *config.Config) Result {
	key := c.Parallel.Ray.DeviceKey
	var short, missing []string
	total := 0.0
	for _, n := range f.there() {
		if n.Ray == nil {
			continue
		}
		total += n.Ray.Devices
		switch has := float64(len(n.Facts.Accelerators)); {
		case key == "GPU" && n.Ray.Devices > has:
			missing = append(missing,
				fmt.Sprintf("%s: Ray has %g, /dev %g", n.Name, n.Ray.Devices, has))
		case key == "CPU" && n.Ray.Devices > float64(n.Facts.Cores):
			short = append(short, fmt.Sprintf("%s: Ray has %g, processes may use %d", n.Name,
				n.Ray.Devices, n.Facts.Cores))
		}
	}
	ranks := c.Parallel.Layout().World() * c.Parallel.Engines()
	if f.Ray == "" {
		return f.cores(ranks, max(1, c.Parallel.CPUThreads))
	}
	per := c.Parallel.Ray.PerWorker
	if key == "CPU" {
		per = float64(max(1, c.Parallel.CPUThreads))
	}
	switch {
	case total < float64(ranks)*per:
		return bad(Fail, "%g %s on all nodes, %d ranks take %g each|Ray can never place them|add "+
			"nodes, or lower the parallel sizes", total, key, ranks, per)
	case missing != nil:
		return bad(Warn, "%s|ranks are given devices that are not there|start Ray with the right "+
			"--num-gpus, and containers with their devices", some(missing))
	case short != nil:
		return bad(Warn, "%s|Ray places more ranks than there are cores for|start Ray with "+
			"--num-cpus as the container has", some(short))
	}
	return ok("%g %s on all nodes, %d ranks take %g each", total, key, ranks, per)
}

// cores checks those of nodes that Ray does not know.
func (f *Found) cores(ranks, threads int) Result {
	each := (ranks + len(f.Nodes) - 1) / len(f.Nodes)
	few := f.of(func(n *Node) string {
		if n.Facts.Cores < each*threads {
			return fmt.Sprintf("has %d cores for %d ranks of %d threads",
				n.Facts.Cores, each, threads)
		}
		return ""
	})
	if few != nil {
		return bad(Warn, "%s|the ranks wait for each other|lower --cpu-threads or the parallel "+
			"sizes", some(few))
	}
	return ok("cores for %d ranks of %d threads on each node", each, threads)
}

func (f *Found) memory(c *config.Config) Result {
	ranks := c.Parallel.Layout().World() * c.Parallel.Engines()
	each := int64((ranks + len(f.Nodes) - 1) / len(f.Nodes))
	// Each rank reads its own part of the weights, which are packed once.
	need := each*c.Cache.MemoryBytes + f.Nodes[0].Facts.Model.Bytes*each/int64(ranks)
	least := int64(-1)
	few := f.of(func(n *Node) string {
		m := n.Facts.Memory
		if m >= 0 && (least < 0 || m < least) {
			least = m
		}
		if m >= 0 && m < max(need, littleMemory) {
			return fmt.Sprintf("has %d MB free", m>>20)
		}
		return ""
	})
	if few != nil {
		return bad(cmp.Or(map[bool]State{true: Fail}[least < need], Warn),
			"%s, %d ranks of the model want about %d MB|the kernel would kill workers|lower "+
				"--kv-cache-memory-bytes, or use more nodes", some(few), each, need>>20)
	}
	return ok("at least %d MB free on every node, about %d MB wanted", least>>20, need>>20)
}

func (f *Found) disks() Result {
	full := f.of(func(n *Node) string {
		switch {
		case n.Facts.DiskError != "":
			return strings.ReplaceAll(n.Facts.DiskError, "|", "/")
		case n.Facts.Disk < littleRoom:
			return fmt.Sprintf("has %d MB free in %s", n.Facts.Disk>>20, n.Facts.Cache)
		}
		return ""
	})
	if full != nil {
		return bad(Warn, "%s|downloads, and copies of this program, end half-way there|make "+
			"room, or set --download-dir", some(full))
	}
	return ok("room on every node")
}
