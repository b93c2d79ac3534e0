package rayactor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Identity is what a rank's actor says of itself once it is placed.
type Identity struct {
	Rank int
	// NodeID is Ray's node id, NodeIP the node's address.
	NodeID, NodeIP string
	// Devices are the ids Ray granted it, in Ray's spelling: "0", or "MIG-…"; none for CPU ranks.
	Devices []string
	// CPUs is the number of cores its process may use.
	CPUs int
}

// Place is a rank's place among the ranks of its node.
type Place struct {
	Rank int
	// LocalRank is the rank's position among the LocalWorld ranks of its node, in rank order.
	LocalRank, LocalWorld int
	// Visible are the devices of all ranks of the node, sorted; numerically if all are numbers.
	Visible []string
	// Device is the rank's own device, Ordinal its position in Visible: the device's number
	// within the worker process. They are "" and -1 for a rank without one.
	Device  string
	Ordinal int
	// Threads is the rank's share of the cores its process may use, at least 1.
	Threads int
	// Env are variables to set for the worker so that it sees the devices of its node's ranks, in
	// the order Ordinal counts: CUDA_VISIBLE_DEVICES for GPUs. All ranks of a node see the same,
	// so that they can reach each other's memory; Ray has shown the actor only its own. It is nil
	// for other resources: what Ray has set for the actor holds, as do HIP_VISIBLE_DEVICES and
	// ROCR_VISIBLE_DEVICES.
	Env map[string]string
}

// Identify finds the place of every rank from what all of them say, in rank order. They may be
// given in any order but must be the ranks 0 to n-1. It is an error when a GPU rank was granted
// no GPU, any rank several, or ranks of a node more of a device than there is: perWorker below 1
// lets them share one. For key CPU devices and perWorker count for nothing.
func Identify(ranks []Identity, key string, perWorker float64) ([]Place, error) {
	if key != CPU && !(units(perWorker) > 0) {
		return nil, fmt.Errorf("a worker must take more than 0 %s, not %v", key, perWorker)
	}
	ranks = slices.Clone(ranks)
	slices.SortStableFunc(ranks, func(a, b Identity) int { return cmp.Compare(a.Rank, b.Rank) })
	nodes := map[string]*nodeRanks{}
	for i, r := range ranks {
		if r.Rank != i {
			return nil,
				fmt.Errorf("%s answered, but not as the ranks 0 to %d: there is a rank %d in the "+
					"place of %d",
					count(len(ranks), "rank"), len(ranks)-1, r.Rank, i)
		}
		if r.NodeID == "" {
			return nil, fmt.Errorf("rank %d does not know its node", r.Rank)
		}
		if nodes[r.NodeID] == nil {
			nodes[r.NodeID] = &nodeRanks{holders: map[string][]int{}}
		}
		if err := nodes[r.NodeID].add(r, key, perWorker); err != nil {
			return nil, err
		}
	}
	places := make([]Place, len(ranks))
	for i, r := range ranks {
		places[i] = nodes[r.NodeID].place(r, key)
	}
	return places, nil
}

// nodeRanks are the ranks of a node, and which of them hold each of its devices.
type nodeRanks struct {
	ranks   []int
	holders map[string][]int
}

func (n *nodeRanks) add(r Identity, key string, perWorker float64) error {
	n.ranks = append(n.ranks, r.Rank)
	if key == CPU {
		return nil
	}
	node := fmt.Sprintf("node %s (%s)", r.NodeIP, shortID(r.NodeID))
	if len(r.Devices) == 0 && key == GPU {
		return fmt.Errorf("rank %d on %s was granted no %s", r.Rank, node, key)
	}
	if len(r.Devices) > 1 {
		return fmt.Errorf("rank %d on %s was granted %d devices of %s (%s), not one", r.Rank, node,
			len(r.Devices), key, strings.Join(r.Devices, ", "))
	}
	for _, id := range r.Devices {
		n.holders[id] = append(n.holders[id], r.Rank)
		if held := n.holders[id]; float64(len(held))*units(perWorker) > units(1) {
			return fmt.Errorf("%s %s of %s was granted to ranks %s, but each takes %s of it", key,
				id, node, joinInts(held), amount(perWorker))
		}
	}
	return nil
}

func (n *nodeRanks) place(r Identity, key string) Place {
	p := Place{
		Rank: r.Rank, LocalRank: slices.Index(n.ranks, r.Rank), LocalWorld: len(n.ranks),
		Visible: sortedDevices(n.holders), Ordinal: -1, Threads: max(r.CPUs/len(n.ranks), 1),
	}
	if key != CPU && len(r.Devices) == 1 {
		p.Device = r.Devices[0]
		p.Ordinal = slices.Index(p.Visible, p.Device)
	}
	if key == GPU {
		p.Env = map[string]string{"CUDA_VISIBLE_DEVICES": strings.Join(p.Visible, ",")}
	}
	return p
}

// sortedDevices are the ids in numeric order if all are numbers, else in the order of their
// letters.
func sortedDevices(holders map[string][]int) []string {
	ids := make([]string, 0, len(holders))
	numbers := map[string]uint64{}
	for id := range holders {
		ids = append(ids, id)
		if n, err := strconv.ParseUint(id, 10, 64); err == nil {
			numbers[id] = n
		}
	}
	numeric := len(numbers) == len(ids)
	slices.SortFunc(ids, func(a, b string) int {
		if numeric && numbers[a] != numbers[b] {
			return cmp.Compare(numbers[a], numbers[b])
		}
		return strings.Compare(a, b)
	})
	return ids
}
