package rayactor

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

func TestIdentify(t *testing.T) {
	id := func(rank int, node string, cpus int, devices ...string) Identity {
		return Identity{Rank: rank, NodeID: node, NodeIP: "10.0.0." + node, Devices: devices,
			CPUs: cpus}
	}
	see := func(ids string) map[string]string {
		return map[string]string{"CUDA_VISIBLE_DEVICES": ids}
	}
	for _, c := range []struct {
		name      string
		ranks     []Identity
		key       string
		perWorker float64
		want      []Place
		err       string
	}{
		{name: "two nodes", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 16, "10"), id(1, "1", 16, "2"), id(2, "2", 8, "0"),
				id(3, "2", 8, "1")},
			want: []Place{
				{Rank: 0, LocalRank: 0, LocalWorld: 2, Visible: []string{"2", "10"}, Device: "10",
					Ordinal: 1, Threads: 8, Env: see("2,10")},
				{Rank: 1, LocalRank: 1, LocalWorld: 2, Visible: []string{"2", "10"}, Device: "2",
					Ordinal: 0, Threads: 8, Env: see("2,10")},
				{Rank: 2, LocalRank: 0, LocalWorld: 2, Visible: []string{"0", "1"}, Device: "0",
					Ordinal: 0, Threads: 4, Env: see("0,1")},
				{Rank: 3, LocalRank: 1, LocalWorld: 2, Visible: []string{"0", "1"}, Device: "1",
					Ordinal: 1, Threads: 4, Env: see("0,1")},
			}},
		{name: "nodes that are mixed", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 4, "0"), id(1, "2", 4, "0"), id(2, "1", 4, "1")},
			want: []Place{
				{Rank: 0, LocalRank: 0, LocalWorld: 2, Visible: []string{"0", "1"}, Device: "0",
					Ordinal: 0, Threads: 2, Env: see("0,1")},
				{Rank: 1, LocalRank: 0, LocalWorld: 1, Visible: []string{"0"}, Device: "0",
					Ordinal: 0, Threads: 4, Env: see("0")},
				{Rank: 2, LocalRank: 1, LocalWorld: 2, Visible: []string{"0", "1"}, Device: "1",
					Ordinal: 1, Threads: 2, Env: see("0,1")},
			}},
		{name: "slices of GPUs", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1, "MIG-b"), id(1, "1", 1, "MIG-a"), id(2, "1", 1, "7")},
			want: []Place{
				{Rank: 0, LocalRank: 0, LocalWorld: 3, Visible: []string{"7", "MIG-a", "MIG-b"},
					Device: "MIG-b", Ordinal: 2, Threads: 1, Env: see("7,MIG-a,MIG-b")},
				{Rank: 1, LocalRank: 1, LocalWorld: 3, Visible: []string{"7", "MIG-a", "MIG-b"},
					Device: "MIG-a", Ordinal: 1, Threads: 1, Env: see("7,MIG-a,MIG-b")},
				{Rank: 2, LocalRank: 2, LocalWorld: 3, Visible: []string{"7", "MIG-a", "MIG-b"},
					Device: "7", Ordinal: 0, Threads: 1, Env: see("7,MIG-a,MIG-b")},
			}},
		{name: "two ranks share a GPU", key: "GPU", perWorker: 0.5,
			ranks: []Identity{id(0, "1", 8, "3"), id(1, "1", 8, "3")},
			want: []Place{
				{Rank: 0, LocalRank: 0, LocalWorld: 2, Visible: []string{"3"}, Device: "3",
					Ordinal: 0, Threads: 4, Env: see("3")},
				{Rank: 1, LocalRank: 1, LocalWorld: 2, Visible: []string{"3"}, Device: "3",
					Ordinal: 0, Threads: 4, Env: see("3")},
			}},
		{name: "CPUs", key: "CPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 3), id(1, "1", 1), id(2, "1", 3, "0")},
			want: []Place{
				{Rank: 0, LocalRank: 0, LocalWorld: 3, Visible: []string{}, Ordinal: -1,
					Threads: 1},
				{Rank: 1, LocalRank: 1, LocalWorld: 3, Visible: []string{}, Ordinal: -1,
					Threads: 1},
				{Rank: 2, LocalRank: 2, LocalWorld: 3, Visible: []string{}, Ordinal: -1,
					Threads: 1},
			}},
		{name: "CPUs without an amount", key: "CPU", ranks: []Identity{id(0, "1", 3)},
			want: []Place{{LocalWorld: 1, Visible: []string{}, Ordinal: -1, Threads: 3}}},
		{name: "another accelerator without ids", key: "NPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 3)},
			want:  []Place{{LocalWorld: 1, Visible: []string{}, Ordinal: -1, Threads: 3}}},
		{name: "another accelerator with ids", key: "TPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 3, "4")},
			want:  []Place{{LocalWorld: 1, Visible: []string{"4"}, Device: "4", Threads: 3}}},
		{name: "no ranks", key: "GPU", perWorker: 1, want: []Place{}},
		{name: "granted twice", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1, "0"), id(1, "1", 1, "0")},
			err:   "GPU 0 of node 10.0.0.1 (1) was granted to ranks 0,1, but each takes 1"},
		{name: "same id on another node", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1, "0"), id(1, "2", 1, "0")},
			want: []Place{
				{Rank: 0, LocalWorld: 1, Visible: []string{"0"}, Device: "0", Threads: 1,
					Env: see("0")},
				{Rank: 1, LocalWorld: 1, Visible: []string{"0"}, Device: "0", Threads: 1,
					Env: see("0")},
			}},
		{name: "three halves", key: "GPU", perWorker: 0.5,
			ranks: []Identity{id(0, "1", 1, "0"), id(1, "1", 1, "0"), id(2, "1", 1, "0")},
			err:   "granted to ranks 0,1,2, but each takes 0.5"},
		{name: "other accelerator granted twice", key: "TPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1, "0"), id(1, "1", 1, "0")}, err: "TPU 0"},
		{name: "no GPU", key: "GPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1, "0"), id(1, "1", 1)},
			err:   "rank 1 on node 10.0.0.1 (1) was granted no GPU"},
		{name: "two GPUs", key: "GPU", perWorker: 1, ranks: []Identity{id(0, "1", 1, "0", "1")},
			err: "rank 0 …granted 2 devices of GPU (0, 1)"},
		{name: "no node", key: "GPU", perWorker: 1, ranks: []Identity{id(0, "", 1, "0")},
			err: "rank 0 does not know its node"},
		{name: "rank missing", key: "CPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1), id(2, "1", 1)}, err: "a rank 2 in the place of 1"},
		{name: "rank twice", key: "CPU", perWorker: 1,
			ranks: []Identity{id(0, "1", 1), id(0, "1", 1)}, err: "a rank 0 in the place of 1"},
		{name: "no amount", key: "GPU", ranks: []Identity{id(0, "1", 1, "0")},
			err: "more than 0 GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The order in which actors answered must not matter.
			for seed := range uint64(4) {
				shuffled := append([]Identity(nil), c.ranks...)
				if seed > 0 {
					r := rand.New(rand.NewPCG(seed, 3))
					r.Shuffle(len(shuffled), func(i, j int) {
						shuffled[i],
							shuffled[j] = shuffled[j], shuffled[i]
					})
				}
				got, err := Identify(shuffled, c.key, c.perWorker)
				wantError(t, err, c.err)
				if err == nil && !reflect.DeepEqual(got, c.want) {
					t.Fatalf("got:\n%+v\nwant:\n%+v", got, c.want)
				}
			}
		})
	}
}
