package rayactor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPU is the resource of a rank that computes on processor cores. An amount of it in a bundle
// counts threads, not devices.
const CPU = "CPU"

// GPU is the resource of a rank that computes on a graphics processor.
const GPU = "GPU"

// indicesFlag names the flag in errors about the order the user gave.
const indicesFlag = "--bundle-indices"

// Bundle is a placed bundle of a placement group.
type Bundle struct {
	// Index is the bundle's place in its group.
	Index int
	// NodeID is the node it is on, in Ray's hexadecimal form; "" while it is on none.
	NodeID string
	// Resources are the amounts it reserves, by Ray's names (CPU, GPU, …).
	Resources map[string]float64
}

// DeviceBundles are the bundles that hold what a worker takes: perWorker of the resource key.
// Others, which hold CPUs for something else or too small a part of a device, are left out. A
// bundle with more than one device is an error that names it, as in vLLM: a rank has one device,
// so the others would be reserved in vain. CPUs of a bundle are the threads of one rank, and any
// number of them is fine.
func DeviceBundles(bundles []Bundle, key string, perWorker float64) ([]Bundle, error) {
	if !(units(perWorker) > 0) || key != CPU && units(perWorker) > units(1) {
		return nil, fmt.Errorf("a worker cannot take %v %s of a bundle, only more than 0 and at "+
			"most 1 device", perWorker, key)
	}
	var out []Bundle
	largest := 0.0
	for _, b := range bundles {
		have := b.Resources[key]
		if key != CPU && units(have) > units(1) {
			return nil,
				fmt.Errorf("bundle %d of the placement group has %s %s: a bundle cannot have "+
					"more than 1", b.Index, amount(have), key)
		}
		largest = max(largest, have)
		if units(have) >= units(perWorker) {
			out = append(out, b)
		}
	}
	if len(out) == 0 && units(largest) > 0 {
		return nil, fmt.Errorf("no bundle of the placement group has more than %s %s, but a "+
			"worker takes %s", amount(largest), key, amount(perWorker))
	}
	return out, nil
}

// Order gives the bundle of each of world ranks, in rank order, from the bundles that DeviceBundles
// found. Explicit indices are followed exactly. Without them come the bundles on the driver's node,
// then the other nodes by node id, on each node by bundle index; skip is a bundle to leave out,
// such as the one of the actor around the engine, or -1 (explicit indices may name it: that actor
// may use nothing but CPUs of it). Exactly world bundles are used even if there are more. Errors
// name the flag --bundle-indices if it is at fault, and say how many bundles are missing if there
// are too few.
func Order(bundles []Bundle, driverNode string, indices []int, world, skip int) ([]Bundle, error) {
	ranks, err := choose(bundles, driverNode, indices, world, skip)
	if err != nil {
		return nil, err
	}
	for rank, b := range ranks {
		if b.NodeID == "" {
			return nil,
				fmt.Errorf("bundle %d of the placement group (rank %d) is on no node: the group "+
					"is not ready", b.Index, rank)
		}
	}
	return ranks, nil
}

func choose(bundles []Bundle, driverNode string, indices []int, world, skip int) ([]Bundle, error) {
	if len(indices) > 0 {
		return explicitOrder(bundles, indices, world)
	}
	usable := slices.DeleteFunc(slices.Clone(bundles),
		func(b Bundle) bool { return skip >= 0 && b.Index == skip })
	if missing := world - len(usable); missing > 0 {
		aside := ""
		if len(usable) < len(bundles) {
			aside = fmt.Sprintf(", not counting bundle %d of the surrounding actor, which %s may "+
				"name", skip, indicesFlag)
		}
		return nil, fmt.Errorf("the placement group has %s with a device, the world has %s: %d "+
			"missing%s", count(len(usable), "bundle"), count(world, "rank"), missing, aside)
	}
	slices.SortStableFunc(usable, func(a, b Bundle) int {
		return cmp.Or(-cmp.Compare(boolInt(a.NodeID == driverNode),
			boolInt(b.NodeID == driverNode)),
			strings.Compare(a.NodeID, b.NodeID), cmp.Compare(a.Index, b.Index))
	})
	return usable[:max(world, 0)], nil
}

// checkIndices refuses explicit indices that no group could satisfy.
func checkIndices(indices []int, world int) error {
	if len(indices) != world {
		return fmt.Errorf("%s %s: must have the same size as the world (%d), got %d", indicesFlag,
			joinInts(indices), world, len(indices))
	}
	for at, index := range indices {
		if slices.Contains(indices[:at], index) {
			return fmt.Errorf("%s %s: cannot have duplicate values, %d is there twice", indicesFlag,
				joinInts(indices), index)
		}
	}
	return nil
}

func explicitOrder(bundles []Bundle, indices []int, world int) ([]Bundle, error) {
	if err := checkIndices(indices, world); err != nil {
		return nil, err
	}
	ranks := make([]Bundle, 0, world)
	for _, index := range indices {
		i := slices.IndexFunc(bundles, func(b Bundle) bool { return b.Index == index })
		if i < 0 {
			have := make([]int, len(bundles))
			for i, b := range bundles {
				have[i] = b.Index
			}
			return nil,
				fmt.Errorf("%s %s: bundle %d is out of range or has no device for a worker; "+
					"bundles that have one: %s",
					indicesFlag, joinInts(indices), index, cmp.Or(joinInts(have), "none"))
		}
		ranks = append(ranks, bundles[i])
	}
	return ranks, nil
}

// ParseIndices reads the value of --bundle-indices: bundle indices in rank order, separated by
// commas; spaces around them are fine, and a blank value is nil. Errors name the flag.
func ParseIndices(s string) ([]int, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	parts := strings.Split(s, ",")
	indices := make([]int, len(parts))
	for i, part := range parts {
		// 31 bits: what Ray's own field holds. A sign is refused with whatever else is not a digit.
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %q is not a bundle index (0, 1, …)", indicesFlag, s,
				strings.TrimSpace(part))
		}
		indices[i] = int(n)
	}
	return indices, nil
}

// SpansNodes is a warning for each tensor-parallel group, tp consecutive ranks of ranks, that is
// on several nodes, with the nodes and how many of its ranks each has; "" when there is none.
// Such a group meets over the network in every layer.
func SpansNodes(ranks []Bundle, tp int) string {
	if tp < 2 {
		return ""
	}
	var warnings []string
	for first := 0; first < len(ranks); first += tp {
		group := ranks[first:min(first+tp, len(ranks))]
		var nodes []string
		members := map[string]int{}
		for _, b := range group {
			if members[b.NodeID] == 0 {
				nodes = append(nodes, b.NodeID)
			}
			members[b.NodeID]++
		}
		if len(nodes) < 2 {
			continue
		}
		for i, node := range nodes {
			nodes[i] = fmt.Sprintf("node %s has %d", shortID(node), members[node])
		}
		warnings = append(warnings,
			fmt.Sprintf("the tensor-parallel group of ranks %d-%d spans %d nodes (%s)",
				first, first+len(group)-1, len(nodes), strings.Join(nodes, ", ")))
	}
	if len(warnings) == 0 {
		return ""
	}
	return strings.Join(warnings, "; ") + fmt.Sprintf(": every layer waits for the network; "+
		"%d free devices on one node would avoid it", tp)
}

// shortID is enough of a node id to tell nodes apart and to find one with "ray list nodes".
func shortID(id string) string {
	const enough = 12
	if len(id) <= 2*enough {
		return id
	}
	return id[:enough]
}

func joinInts(values []int) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = strconv.Itoa(v)
	}
	return strings.Join(parts, ",")
}

// count is a number with its noun: "1 bundle", "2 bundles".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
