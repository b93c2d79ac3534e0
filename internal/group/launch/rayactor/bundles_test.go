package rayactor

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// gpus are bundles of one GPU, by the node of each.
func gpus(nodes ...string) []Bundle {
	bundles := make([]Bundle, len(nodes))
	for i, n := range nodes {
		bundles[i] = Bundle{Index: i, NodeID: n, Resources: map[string]float64{"GPU": 1}}
	}
	return bundles
}

func indicesOf(bundles []Bundle) []int {
	out := []int{}
	for _, b := range bundles {
		out = append(out, b.Index)
	}
	return out
}

// wantError checks that an error says all of the parts, separated by "…"; "" wants none.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Fatalf("got error %q, want none", err)
		}
		return
	}
	if err == nil {
		t.Fatalf("got no error, want one with %q", want)
	}
	for part := range strings.SplitSeq(want, "…") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got error %q, want one with %q", err, part)
		}
	}
}

func TestDeviceBundles(t *testing.T) {
	type res = map[string]float64
	for _, c := range []struct {
		name      string
		bundles   []res
		key       string
		perWorker float64
		want      []int
		err       string
	}{
		{name: "one each", bundles: []res{{"GPU": 1}, {"GPU": 1, "CPU": 8}}, key: "GPU",
			perWorker: 1, want: []int{0, 1}},
		{name: "bundles of CPUs are left out", bundles: []res{{"CPU": 1}, {"GPU": 1},
			{"memory": 1e9}}, key: "GPU", perWorker: 1, want: []int{1}},
		{name: "none", key: "GPU", perWorker: 1, want: []int{}},
		{name: "no bundle has the device", bundles: []res{{"CPU": 1}}, key: "GPU", perWorker: 1,
			want: []int{}},
		{name: "two devices", bundles: []res{{"GPU": 1}, {"GPU": 2}}, key: "GPU", perWorker: 1,
			err: "bundle 1 …has 2 GPU…cannot have more than 1"},
		{name: "two devices in halves", bundles: []res{{"GPU": 2}}, key: "GPU", perWorker: 0.5,
			err: "bundle 0 …cannot have more than 1"},
		{name: "a device and a half", bundles: []res{{"GPU": 1.5}}, key: "GPU", perWorker: 1,
			err: "bundle 0 …has 1.5 GPU"},
		{name: "a part of a device", bundles: []res{{"GPU": 0.5}, {"GPU": 0.25}, {"GPU": 1}},
			key: "GPU", perWorker: 0.5, want: []int{0, 2}},
		{name: "parts that are too small", bundles: []res{{"GPU": 0.25}, {"GPU": 0.5}}, key: "GPU",
			perWorker: 1,
			err:       "no bundle …more than 0.5 GPU, but a worker takes 1"},
		{name: "Ray's precision", bundles: []res{{"GPU": 0.3333}}, key: "GPU", perWorker: 1.0 / 3,
			want: []int{0}},
		{name: "CPUs are threads", bundles: []res{{"CPU": 1}, {"CPU": 8}, {"CPU": 16}}, key: "CPU",
			perWorker: 8, want: []int{1, 2}},
		{name: "too few CPUs", bundles: []res{{"CPU": 1}, {"CPU": 2}}, key: "CPU", perWorker: 8,
			err: "more than 2 CPU, but a worker takes 8"},
		{name: "another accelerator", bundles: []res{{"TPU": 1}, {"GPU": 4}}, key: "TPU",
			perWorker: 1, want: []int{0}},
		{name: "two of another accelerator", bundles: []res{{"TPU": 4}}, key: "TPU", perWorker: 1,
			err: "bundle 0 …has 4 TPU"},
		{name: "worker of two devices", bundles: []res{{"GPU": 1}}, key: "GPU", perWorker: 2,
			err: "cannot take 2 GPU"},
		{name: "worker of nothing", bundles: []res{{"GPU": 1}}, key: "GPU", perWorker: 0,
			err: "cannot take 0 GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bundles []Bundle
			for i, r := range c.bundles {
				bundles = append(bundles, Bundle{Index: i, NodeID: "n", Resources: r})
			}
			got, err := DeviceBundles(bundles, c.key, c.perWorker)
			wantError(t, err, c.err)
			if err == nil && !slices.Equal(indicesOf(got), c.want) {
				t.Errorf("got bundles %v, want %v", indicesOf(got), c.want)
			}
		})
	}
}

// The first eight are the cases of vLLM's test_get_bundles_sorted_by_node, where the driver is on
// node_a.
func TestOrder(t *testing.T) {
	const a, b, c = "node_a", "node_b", "node_c"
	for _, tc := range []struct {
		name    string
		bundles []Bundle
		indices []int
		world   int
		skip    int
		want    []int
		err     string
	}{
		{name: "three nodes interleaved", bundles: gpus(c, a, b, c, a, b), world: 6, skip: -1,
			want: []int{1, 4, 2, 5, 0, 3}},
		{name: "driver has the higher bundles", bundles: gpus(b, b, a, a), world: 4, skip: -1,
			want: []int{2, 3, 0, 1}},
		{name: "driver has none", bundles: gpus(c, b, c, b), world: 4, skip: -1,
			want: []int{1, 3, 0, 2}},
		{name: "one node", bundles: gpus(a, a, a), world: 3, skip: -1, want: []int{0, 1, 2}},
		{name: "one bundle", bundles: gpus(a), world: 1, skip: -1, want: []int{0}},
		{name: "empty", world: 0, skip: -1, want: []int{}},
		{name: "more bundles than ranks", bundles: gpus(a, b, a, b), world: 2, skip: -1,
			want: []int{0, 2}},
		{name: "bundle of CPUs", bundles: append([]Bundle{{Index: 0, NodeID: a,
			Resources: map[string]float64{"CPU": 1}}}, gpus("", b, a)[1:]...),
			world: 2, skip: -1, want: []int{2, 1}},
		{name: "driver first though there are more", bundles: gpus(b, b, b, a), world: 2, skip: -1,
			want: []int{3, 0}},
		{name: "surrounding actor's bundle", bundles: gpus(a, a, b), world: 2, skip: 0,
			want: []int{1, 2}},
		{name: "surrounding actor's bundle is missing", bundles: gpus(a, a), world: 2, skip: 1,
			err: "1 missing…not counting bundle 1…--bundle-indices"},
		{name: "too few", bundles: gpus(a, b), world: 5, skip: -1,
			err: "has 2 bundles with a device, the world has 5 ranks: 3 missing"},
		{name: "explicit 2,3", bundles: gpus(a, a, a, a), indices: []int{2, 3}, world: 2, skip: -1,
			want: []int{2, 3}},
		{name: "explicit 3,2", bundles: gpus(a, a, a, a), indices: []int{3, 2}, world: 2, skip: -1,
			want: []int{3, 2}},
		{name: "explicit against nodes", bundles: gpus(a, c, b), indices: []int{1, 0, 2}, world: 3,
			skip: -1, want: []int{1, 0, 2}},
		{name: "explicit names the surrounding actor's", bundles: gpus(a, b), indices: []int{1, 0},
			world: 2, skip: 0, want: []int{1, 0}},
		{name: "duplicates", bundles: gpus(a, a), indices: []int{1, 1}, world: 2, skip: -1,
			err: "--bundle-indices 1,1: cannot have duplicate values, 1 is there twice"},
		{name: "wrong count", bundles: gpus(a, a, a), indices: []int{0, 1, 2}, world: 2, skip: -1,
			err: "--bundle-indices 0,1,2: must have the same size as the world (2), got 3"},
		{name: "out of range", bundles: gpus(a, a), indices: []int{0, 2}, world: 2, skip: -1,
			err: "--bundle-indices 0,2: bundle 2 is out of range…have one: 0,1"},
		{name: "negative", bundles: gpus(a, a), indices: []int{0, -1}, world: 2, skip: -1,
			err: "--bundle-indices 0,-1: bundle -1 is out of range"},
		{name: "without the device", bundles: gpus(a, a, a)[1:], indices: []int{0, 1}, world: 2,
			skip: -1,
			err: "--bundle-indices 0,1: bundle 0 …has no device for a worker; bundles that have " +
				"one: 1,2"},
		{name: "nothing has a device", indices: []int{0}, world: 1, skip: -1,
			err: "have one: none"},
		{name: "not placed yet", bundles: gpus(a, ""), world: 2, skip: -1,
			err: "bundle 1 …is on no node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.bundles)
			devices := tc.bundles
			if tc.name == "bundle of CPUs" {
				var err error
				if devices, err = DeviceBundles(tc.bundles, "GPU", 1); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Order(devices, a, tc.indices, tc.world, tc.skip)
			wantError(t, err, tc.err)
			if err == nil && !slices.Equal(indicesOf(got), tc.want) {
				t.Errorf("got bundles %v, want %v", indicesOf(got), tc.want)
			}
			if !reflect.DeepEqual(tc.bundles, before) {
				t.Errorf("the bundles passed in were changed: %v", tc.bundles)
			}
		})
	}
}

// Whatever the group: the order is a choice of its device bundles without repetition, the
// driver's node is used up before another is begun, nodes follow each other by id without being
// mixed, bundles of a node by index, a larger group does not change the first ranks, and the
// order the bundles are listed in counts for nothing.
func TestOrderProperties(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		group := make([]Bundle, r.IntN(12))
		for i := range group {
			resources := map[string]float64{"CPU": 1}
			if r.IntN(3) > 0 {
				resources["GPU"] = 1
			}
			group[i] = Bundle{Index: i, NodeID: fmt.Sprintf("node%d", r.IntN(4)),
				Resources: resources}
		}
		driver := fmt.Sprintf("node%d", r.IntN(5))
		devices, err := DeviceBundles(group, "GPU", 1)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Order(devices, driver, nil, len(devices), -1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(slices.Values(indicesOf(all))),
			indicesOf(devices); !slices.Equal(got, want) {
			t.Fatalf("seed %d: order %v is no permutation of the device bundles %v", seed, got,
				want)
		}
		for i := 1; i < len(all); i++ {
			x, y := all[i-1], all[i]
			switch {
			case x.NodeID == y.NodeID && x.Index >= y.Index:
				t.Fatalf("seed %d: bundle %d is before %d on %s", seed, x.Index, y.Index, x.NodeID)
			case x.NodeID != y.NodeID && y.NodeID == driver:
				t.Fatalf("seed %d: %s comes before the driver's node %s", seed, x.NodeID, driver)
			case x.NodeID != y.NodeID && x.NodeID != driver && x.NodeID > y.NodeID:
				t.Fatalf("seed %d: %s comes before %s", seed, x.NodeID, y.NodeID)
			}
		}
		world := r.IntN(len(devices) + 1)
		r.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
		some, err := Order(devices, driver, nil, world, -1)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(indicesOf(some), indicesOf(all[:world])) {
			t.Fatalf("seed %d: %d of %d ranks got bundles %v, want the first of %v", seed, world,
				len(all), indicesOf(some), indicesOf(all))
		}
		if _, err := Order(devices, driver, nil, len(devices)+2, -1); err == nil ||
			!strings.Contains(err.Error(), "2 missing") {
			t.Fatalf("seed %d: two bundles too few: %v", seed, err)
		}
		// What Order gives is, as --bundle-indices, followed to the letter.
		again, err := Order(devices, driver, indicesOf(all), len(all), -1)
		if err != nil || !slices.Equal(indicesOf(again), indicesOf(all)) {
			t.Fatalf("seed %d: explicit %v gave %v, %v", seed, indicesOf(all), indicesOf(again),
				err)
		}
	}
}

func TestParseIndices(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []int
		err  string
	}{
		{in: ""}, {in: "  "},
		{in: "2,3", want: []int{2, 3}},
		{in: " 3 ,\t2", want: []int{3, 2}},
		{in: "0", want: []int{0}},
		{in: "1,1", want: []int{1, 1}}, // Order refuses it, with the world's size at hand
		{in: "2147483647", want: []int{2147483647}},
		{in: "2147483648", err: `"2147483648" is not a bundle index`},
		{in: "1,,2", err: `--bundle-indices "1,,2": "" is not a bundle index`},
		{in: "1,", err: `"" is not a bundle index`},
		{in: ",", err: `"" is not`},
		{in: "1 2", err: `"1 2" is not`},
		{in: "-1", err: `"-1" is not`},
		{in: "+1", err: `"+1" is not`},
		{in: "0x1", err: `"0x1" is not`},
		{in: "[0,1]", err: `"[0" is not`},
		{in: "a", err: `--bundle-indices "a"`},
	} {
		got, err := ParseIndices(c.in)
		wantError(t, err, c.err)
		if !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("ParseIndices(%q) = %v, want %v", c.in, got, c.want)
		}
	}
}

func FuzzParseIndices(f *testing.F) {
	for _, s := range []string{"", "2,3", " 1 , 1 ", "0,,1", "-1", "99999999999999999999",
		"1\n,2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		indices, err := ParseIndices(s)
		if err != nil {
			if indices != nil || !strings.Contains(err.Error(), "--bundle-indices") {
				t.Fatalf("%q: %v, %v", s, indices, err)
			}
			return
		}
		for _, i := range indices {
			if i < 0 {
				t.Fatalf("%q gave %v", s, indices)
			}
		}
		again, err := ParseIndices(joinInts(indices))
		if err != nil || !slices.Equal(again, indices) {
			t.Fatalf("%q gave %v, written and read again %v, %v", s, indices, again, err)
		}
		if want := strings.Count(s, ",") + 1; indices != nil && len(indices) != want {
			t.Fatalf("%q gave %d indices, want %d", s, len(indices), want)
		}
	})
}

func TestSpansNodes(t *testing.T) {
	const long = "5f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d"
	for _, c := range []struct {
		name  string
		ranks []Bundle
		tp    int
		want  string // parts separated by "…"
		not   string
	}{
		{name: "one node", ranks: gpus("a", "a", "a", "a"), tp: 4},
		{name: "a node for each group", ranks: gpus("a", "a", "b", "b"), tp: 2},
		{name: "no tensor parallelism", ranks: gpus("a", "b", "c"), tp: 1},
		{name: "no ranks", tp: 2},
		{name: "split", ranks: gpus("a", "a", "a", "b"), tp: 4,
			want: "ranks 0-3 spans 2 nodes (node a has 3, node b has 1)…4 free devices"},
		{name: "second group is split", ranks: gpus("a", "a", "b", "c"), tp: 2,
			want: "ranks 2-3 spans 2 nodes (node b has 1, node c has 1)", not: "0-1"},
		{name: "both are split", ranks: gpus("a", "b", "b", "c"), tp: 2,
			want: "ranks 0-1 spans…ranks 2-3 spans"},
		{name: "node ids are shortened", ranks: gpus(long, "b"), tp: 2,
			want: "node 5f0b1c2d3e4f has 1", not: long},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := SpansNodes(c.ranks, c.tp)
			if (got == "") != (c.want == "") {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for part := range strings.SplitSeq(c.want, "…") {
				if !strings.Contains(got, part) {
					t.Errorf("got %q, want it to say %q", got, part)
				}
			}
			if c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("got %q, which says %q", got, c.not)
			}
		})
	}
}
