package rayactor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// NodeFree is a node of the cluster with what it has and what of that is free.
type NodeFree struct {
	// ID is Ray's node id, IP the node's address.
	ID, IP string
	// Alive is false for nodes that Ray remembers but has lost.
	Alive bool
	// Total and Free are amounts by resource.
	Total, Free map[string]float64
}

// GroupSpec are the bundles of a placement group for world ranks, one each: perWorker of the
// resource key, or cpuThreads CPUs (at least one) when key is CPU.
func GroupSpec(world int, key string, perWorker float64, cpuThreads int) []map[string]float64 {
	bundles := make([]map[string]float64, max(world, 0))
	for i := range bundles {
		bundles[i] = map[string]float64{key: perBundle(key, perWorker, cpuThreads)}
	}
	return bundles
}

// perBundle is how much of the resource key one rank's bundle holds: CPUs for its threads, else a
// part of a device.
func perBundle(key string, perWorker float64, cpuThreads int) float64 {
	if key == CPU {
		return float64(max(cpuThreads, 1))
	}
	return perWorker
}

// Shortage explains, in several lines, why a group is not placed yet: what is wanted, what each
// node has free, what is missing, and what the user can do. The amounts that are free on the
// whole cluster count what holds resources outside placement groups, which the nodes' do not.
func Shortage(wanted []map[string]float64, nodes []NodeFree, available map[string]float64) string {
	var b strings.Builder
	kinds := kindsOf(wanted)
	now := fill(wanted, nodes, freeOf)
	fmt.Fprintf(&b, "wanted: %s; %d of %d fit into what is free now\n", kindsText(kinds),
		now.placed, len(wanted))
	describeNodes(&b, kinds, nodes)
	if held := usedOutside(kinds, available); len(now.left) == 0 && held != "" {
		fmt.Fprintf(&b,
			"missing: actors and tasks outside placement groups hold the rest: on the whole "+
				"cluster are free %s\n", held)
		b.WriteString("hint: wait for them or end them (see \"ray status\"), lower " +
			"--tensor-parallel-size (-tp), or add nodes")
		return b.String()
	}
	if len(now.left) == 0 {
		b.WriteString("missing: nothing; Ray should place the group at any moment")
		return b.String()
	}
	fmt.Fprintf(&b, "missing: %s%s\n", kindsText(kindsOf(now.left)), now.scattered())
	if idle := fill(wanted, nodes, totalOf); Impossible(wanted, nodes) {
		fmt.Fprintf(&b, "the cluster holds only %d of %d even with nothing else running\n",
			idle.placed, len(wanted))
		b.WriteString("hint: lower --tensor-parallel-size (-tp), or add nodes")
	} else {
		b.WriteString("the cluster is large enough, but others hold what is missing\n")
		b.WriteString("hint: wait for them or end them (see \"ray status\"), lower " +
			"--tensor-parallel-size (-tp), or add nodes")
	}
	if slices.ContainsFunc(now.left,
		func(r map[string]float64) bool { return units(r[CPU]) > units(1) }) {
		b.WriteString("; --cpu-threads lowers the CPUs of a bundle")
	}
	return b.String()
}

// Impossible reports whether the nodes could not hold the bundles even with nothing else running
// on them. It is true only when that is certain; nodes that join later (an autoscaler's) can
// still change it.
func Impossible(wanted []map[string]float64, nodes []NodeFree) bool {
	if len(fill(wanted, nodes, totalOf).left) == 0 {
		return false
	}
	kinds := kindsOf(wanted)
	// Filling node by node is exact for bundles of one kind, so a kind that does not fit alone
	// settles it.
	for _, k := range kinds {
		if len(fill(slices.Repeat([]map[string]float64{k.bundle}, k.count), nodes,
			totalOf).left) > 0 {
			return true
		}
	}
	// Several kinds that each fit alone may still not fit together; finding that out in general
	// is a packing problem, so only the sums are looked at.
	for _, key := range keysOf(kinds) {
		var need, have float64
		for _, k := range kinds {
			need += units(k.bundle[key]) * float64(k.count)
		}
		for _, n := range nodes {
			have += units(totalOf(n)[key])
		}
		if need > have {
			return true
		}
	}
	return false
}

// usedOutside lists the resources of which more is wanted than is free, "" when there are none or
// it is not known.
func usedOutside(kinds []kind, available map[string]float64) string {
	if available == nil {
		return ""
	}
	var short []string
	for _, key := range keysOf(kinds) {
		var need float64
		for _, k := range kinds {
			need += units(k.bundle[key]) * float64(k.count)
		}
		if free := available[key]; need > units(free) { // Ray leaves out what nothing is free of
			short = append(short, fmt.Sprintf("%s %s of %s wanted", amount(free), key,
				amount(need/scale)))
		}
	}
	return strings.Join(short, ", ")
}

// freeOf and totalOf are what a node offers; a dead one offers nothing.
func freeOf(n NodeFree) map[string]float64 {
	if !n.Alive {
		return nil
	}
	return n.Free
}

func totalOf(n NodeFree) map[string]float64 {
	if !n.Alive {
		return nil
	}
	return n.Total
}

// filling is how far bundles went: how many were placed, which were not, and the room left on
// each node, in units.
type filling struct {
	placed int
	left   []map[string]float64
	room   []map[string]float64
}

// fill puts bundles on nodes, the largest first, each on the first node that has room. For
// bundles of one kind no other way places more.
func fill(bundles []map[string]float64, nodes []NodeFree,
	offer func(NodeFree) map[string]float64) filling {
	room := make([]map[string]float64, len(nodes))
	for i, n := range nodes {
		room[i] = map[string]float64{}
		for key, v := range offer(n) {
			room[i][key] = units(v)
		}
	}
	sorted := slices.Clone(bundles)
	slices.SortStableFunc(sorted, func(a, b map[string]float64) int {
		return cmp.Compare(size(b),
			size(a))
	})
	out := filling{room: room}
	for _, bundle := range sorted {
		i := slices.IndexFunc(room, func(has map[string]float64) bool { return fits(bundle, has) })
		if i < 0 {
			out.left = append(out.left, bundle)
			continue
		}
		out.placed++
		for key, v := range bundle {
			room[i][key] -= units(v)
		}
	}
	return out
}

// nodeShare is the least amount of a node's own resource, of which Ray gives each node one.
const nodeShare = 0.001

// onNodes adds to each bundle a share of the first of the nodes that has room for it: Ray places it
// there, or nowhere. It is nil if the nodes have too little.
func onNodes(bundles []map[string]float64, nodes []NodeFree) []map[string]float64 {
	room := fill(nil, nodes, freeOf).room
	pinned := make([]map[string]float64, 0, len(bundles))
	for _, bundle := range bundles {
		for i, n := range nodes {
			wanted := maps.Clone(bundle)
			wanted["node:"+n.IP] = nodeShare
			if fits(wanted, room[i]) {
				for key, v := range wanted {
					room[i][key] -= units(v)
				}
				pinned = append(pinned, wanted)
				break
			}
		}
	}
	if len(pinned) < len(bundles) {
		return nil
	}
	return pinned
}

// fits reports whether a bundle finds room, which is in units.
func fits(bundle, room map[string]float64) bool {
	for key, v := range bundle {
		if units(v) > room[key] {
			return false
		}
	}
	return true
}

func size(bundle map[string]float64) float64 {
	sum := 0.0
	for _, key := range slices.Sorted(maps.Keys(bundle)) {
		sum += units(bundle[key])
	}
	return sum
}

// scattered says when what is left over of each resource would do for another bundle, but not on
// one node.
func (f filling) scattered() string {
	if len(f.left) == 0 {
		return ""
	}
	bundle := f.left[0]
	var over []string
	for _, key := range keysOf(kindsOf(f.left[:1])) {
		have := 0.0
		for _, room := range f.room {
			have += room[key]
		}
		if have < units(bundle[key]) {
			return ""
		}
		over = append(over, amount(have/scale)+" "+key)
	}
	return fmt.Sprintf(" (%s left over in all, but no node has %s)", strings.Join(over, " and "),
		bundleText(bundle))
}

// maxNodeLines bounds the report about a large cluster.
const maxNodeLines = 16

func describeNodes(b *strings.Builder, kinds []kind, nodes []NodeFree) {
	if !slices.ContainsFunc(nodes, func(n NodeFree) bool { return n.Alive }) {
		b.WriteString("  no node is alive\n")
	}
	keys := keysOf(kinds)
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(x, y NodeFree) int {
		if x.Alive != y.Alive {
			return cmp.Compare(boolInt(y.Alive), boolInt(x.Alive))
		}
		return cmp.Or(cmp.Compare(x.IP, y.IP), cmp.Compare(x.ID, y.ID))
	})
	rest := NodeFree{Alive: true, Free: map[string]float64{}, Total: map[string]float64{}}
	for i, n := range sorted {
		if i >= maxNodeLines {
			for _, key := range keys {
				rest.Free[key] += freeOf(n)[key]
				rest.Total[key] += totalOf(n)[key]
			}
			continue
		}
		fmt.Fprintf(b, "  node %s (%s): %s\n", n.IP, shortID(n.ID), n.amounts(keys))
	}
	if more := len(sorted) - maxNodeLines; more > 0 {
		fmt.Fprintf(b, "  and %s: %s\n", count(more, "more node"), rest.amounts(keys))
	}
}

func (n NodeFree) amounts(keys []string) string {
	if !n.Alive {
		return "dead, not counted"
	}
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = fmt.Sprintf("%s %s free of %s", key, amount(n.Free[key]), amount(n.Total[key]))
	}
	return strings.Join(parts, ", ")
}

// kind is a bundle and how many of it are wanted.
type kind struct {
	bundle map[string]float64
	count  int
}

func kindsOf(bundles []map[string]float64) []kind {
	var kinds []kind
	at := map[string]int{}
	for _, b := range bundles {
		text := bundleText(b)
		i, seen := at[text]
		if !seen {
			i = len(kinds)
			at[text] = i
			kinds = append(kinds, kind{bundle: b})
		}
		kinds[i].count++
	}
	return kinds
}

func kindsText(kinds []kind) string {
	parts := make([]string, len(kinds))
	for i, k := range kinds {
		parts[i] = fmt.Sprintf("%s of %s", count(k.count, "bundle"), bundleText(k.bundle))
	}
	return strings.Join(parts, " and ")
}

func keysOf(kinds []kind) []string {
	keys := map[string]bool{}
	for _, k := range kinds {
		for key := range k.bundle {
			keys[key] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// scale is the precision Ray keeps amounts in: they are whole numbers of a ten-thousandth.
const scale = 10000

// units is an amount in Ray's precision, so that comparing and adding amounts is exact.
func units(v float64) float64 { return math.Round(v * scale) }

// amount writes an amount as Ray's tools do: 1, 0.5, 64.
func amount(v float64) string { return strconv.FormatFloat(units(v)/scale, 'f', -1, 64) }

// bundleText writes a bundle as {CPU: 4, GPU: 1}, without what it has nothing of.
func bundleText(bundle map[string]float64) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(bundle)) {
		if units(bundle[key]) != 0 {
			parts = append(parts, key+": "+amount(bundle[key]))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
