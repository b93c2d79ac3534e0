package fleetbench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Mixture is the shape of a model's mixtures of experts.
type Mixture struct {
	Name string `json:"model"`
	// Hidden is the number of elements of a row, Inner the inner features of an expert.
	Hidden int `json:"hidden_size"`
	Inner  int `json:"moe_intermediate_size"`
	// Experts are those of a layer, of which a row goes to PerToken; Layers have them.
	Experts  int `json:"num_experts"`
	PerToken int `json:"num_experts_per_tok"`
	Layers   int `json:"layers"`
}

// Mixtures are those of published models: layers without experts, and experts that are every row's,
// are left out.
func Mixtures() []Mixture {
	return []Mixture{
		{"Qwen3-30B-A3B", 2048, 768, 128, 8, 48},
		{"Qwen3-235B-A22B", 4096, 1536, 128, 8, 94},
		{"DeepSeek-V3", 7168, 2048, 256, 8, 58},
		{"gpt-oss-120b", 2880, 2880, 128, 4, 36},
		{"Mixtral-8x7B", 4096, 14336, 8, 2, 32},
	}
}

// Links are what ranks exchange over.
type Links struct {
	// RankGBs is what a rank sends to others of its node, in GB/s, LinkGBs what it sends to other
	// nodes at most, for it encrypts that, and NodeGBs what all ranks of a node send there
	// together; as much is received at the same time.
	RankGBs float64 `json:"rank_gb_per_s"`
	LinkGBs float64 `json:"link_gb_per_s"`
	NodeGBs float64 `json:"node_gb_per_s"`
	// RankUS and NodeUS are what an exchange takes if there are no bytes, in microseconds, and
	// MessageUS what each message to a rank of another node takes its sender.
	RankUS    float64 `json:"rank_us"`
	NodeUS    float64 `json:"node_us"`
	MessageUS float64 `json:"message_us"`
}

// ExpertOptions say what is modelled.
type ExpertOptions struct {
	Mixture
	Links
	// Ranks are the sizes of the fleet; each rank has whole experts, as even as may be.
	Ranks        []int `json:"-"`
	RanksPerNode int   `json:"ranks_per_node"`
	// Rows are those that each rank has in a step.
	Rows int `json:"rows"`
	// DispatchBytes and CombineBytes are sent for each element of a row, and of its sums.
	DispatchBytes float64 `json:"dispatch_bytes"`
	CombineBytes  float64 `json:"combine_bytes"`
	// WeightBits are those of a weight, scales included; MemoryGBs is what a rank reads of them, in
	// GB/s, and TFLOPS what it computes.
	WeightBits float64 `json:"weight_bits"`
	MemoryGBs  float64 `json:"memory_gb_per_s"`
	TFLOPS     float64 `json:"tflops"`
}

// ExpertReport is what Experts finds.
type ExpertReport struct {
	ExpertOptions
	Fleets []ExpertFleet `json:"fleets"`
	// Best is the size with the shortest step.
	Best int `json:"best_ranks"`
	// Growth are the powers of the number of ranks with which figures of the larger half grow.
	Growth []Growth `json:"growth"`
}

// ExpertFleet is a step of a fleet, averages of a rank.
type ExpertFleet struct {
	Ranks int `json:"ranks"`
	Nodes int `json:"nodes"`
	// MostExperts are those of the ranks with the most, of a layer, and WeightGB what all layers'
	// take.
	MostExperts int     `json:"most_experts"`
	WeightGB    float64 `json:"weight_gb"`
	// Visits is how many ranks a row goes to in a layer, its own included; Near are others of its
	// node, Far those of other nodes.
	Visits float64 `json:"visits"`
	Near   float64 `json:"near_visits"`
	Far    float64 `json:"far_visits"`
	// Bytes that a rank sends within its node, and to others.
	NearBytes Traffic `json:"near_bytes"`
	FarBytes  Traffic `json:"far_bytes"`
	// Messages that a rank sends: one to each other rank in each of the two exchanges of a layer,
	// empty ones too, since every rank waits for every other.
	NearMessages float64 `json:"near_messages"`
	FarMessages  float64 `json:"far_messages"`
	// Times of a step, in microseconds: experts are read and computed on the rank that has the
	// most.
	ExpertsUS  float64 `json:"experts_us"`
	DispatchUS float64 `json:"dispatch_us"`
	CombineUS  float64 `json:"combine_us"`
}

// Traffic is the bytes of the two exchanges.
type Traffic struct {
	Dispatch float64 `json:"dispatch"`
	Combine  float64 `json:"combine"`
}

// StepUS is the time of a step in microseconds.
func (f *ExpertFleet) StepUS() float64 { return f.ExpertsUS + f.DispatchUS + f.CombineUS }

// Bytes are those that a rank sends, near and far.
func (f *ExpertFleet) Bytes() float64 {
	return f.NearBytes.Dispatch + f.NearBytes.Combine + f.FarBytes.Dispatch + f.FarBytes.Combine
}

// Experts models expert parallelism: rows go to the ranks that have their experts, once to each,
// and sums come back. Rows choose experts at random, each as likely.
func Experts(o ExpertOptions) ExpertReport {
	r := ExpertReport{ExpertOptions: o}
	for _, n := range slices.Sorted(slices.Values(o.Ranks)) {
		r.Fleets = append(r.Fleets, o.fleet(n))
	}
	best := slices.MinFunc(r.Fleets, func(a, b ExpertFleet) int {
		return cmp.Compare(a.StepUS(), b.StepUS())
	})
	r.Best = best.Ranks
	for _, figure := range expertFigures() {
		var n, y []float64
		for i := range r.Fleets {
			if v := figure.of(&r.Fleets[i]); v > 0 {
				n, y = append(n, float64(r.Fleets[i].Ranks)), append(y, v)
			}
		}
		if len(n) < 2 {
			continue
		}
		half := min(len(n)/2, len(n)-2)
		_, power := line(logs(n[half:]), logs(y[half:]))
		r.Growth = append(r.Growth, Growth{Kind: figure.unit, Figure: figure.name, Power: power})
	}
	return r
}

// expertFigure is something that grows with the number of ranks.
type expertFigure struct {
	name, unit string
	of         func(*ExpertFleet) float64
}

func expertFigures() []expertFigure {
	return []expertFigure{
		{"experts", "time", func(f *ExpertFleet) float64 { return f.ExpertsUS }},
		{"dispatch", "time", func(f *ExpertFleet) float64 { return f.DispatchUS }},
		{"combine", "time", func(f *ExpertFleet) float64 { return f.CombineUS }},
		{"step", "time", (*ExpertFleet).StepUS},
		{"within node", "bytes", func(f *ExpertFleet) float64 {
			return f.NearBytes.Dispatch + f.NearBytes.Combine
		}},
		{"between nodes", "bytes", func(f *ExpertFleet) float64 {
			return f.FarBytes.Dispatch + f.FarBytes.Combine
		}},
		{"of the fleet", "bytes", func(f *ExpertFleet) float64 {
			return float64(f.Ranks) * f.Bytes()
		}},
		{"of the fleet", "messages", func(f *ExpertFleet) float64 {
			return float64(f.Ranks) * (f.NearMessages + f.FarMessages)
		}},
	}
}

// MessageHeader is what a message between nodes has beside its run, in bytes.
const MessageHeader = 32

// fleet is a step of n ranks.
func (o *ExpertOptions) fleet(n int) ExpertFleet {
	each, more := o.Experts/n, o.Experts%n
	f := ExpertFleet{Ranks: n, Nodes: (n + o.RanksPerNode - 1) / o.RanksPerNode, MostExperts: each}
	if more > 0 {
		f.MostExperts++
	}
	ranks, layers, rows := float64(n), float64(o.Layers), float64(o.Rows)
	var neighbours float64
	for rank := range n {
		held := each
		if rank < more {
			held++
		}
		node := min(o.RanksPerNode, n-rank/o.RanksPerNode*o.RanksPerNode)
		v := Visited(o.Experts, o.PerToken, held)
		f.Visits += v
		f.Near += v * float64(node-1) / ranks
		f.Far += v * float64(n-node) / ranks
		neighbours += float64(node-1) / ranks
	}
	f.NearMessages = 2 * layers * neighbours
	f.FarMessages = 2 * layers * (ranks - 1 - neighbours)
	elements := layers * rows * float64(o.Hidden)
	headers := f.FarMessages / 2 * MessageHeader
	f.NearBytes = Traffic{elements * f.Near * o.DispatchBytes, elements * f.Near * o.CombineBytes}
	f.FarBytes = Traffic{elements*f.Far*o.DispatchBytes + headers,
		elements*f.Far*o.CombineBytes + headers}

	const matrices = 3 // gate, up and down
	weights := matrices * float64(o.Hidden) * float64(o.Inner)
	expertBytes := weights * o.WeightBits / 8
	most := float64(f.MostExperts)
	f.WeightGB = layers * most * expertBytes / 1e9
	chosen := float64(o.PerToken) / float64(o.Experts)
	// Of the experts that a rank has, those are read that some row of the fleet has chosen.
	read := most * -math.Expm1(ranks*rows*math.Log1p(-chosen)) * expertBytes / (o.MemoryGBs * 1e3)
	compute := ranks * rows * chosen * most * 2 * weights / (o.TFLOPS * 1e6)
	f.ExpertsUS = layers * max(read, compute)
	f.DispatchUS = o.exchange(&f, f.NearBytes.Dispatch, f.FarBytes.Dispatch)
	f.CombineUS = o.exchange(&f, f.NearBytes.Combine, f.FarBytes.Combine)
	return f
}

// exchange is the time of one exchange in all layers: between nodes, then within each, as package
// hosts has it.
func (o *ExpertOptions) exchange(f *ExpertFleet, near, far float64) float64 {
	var us float64
	layers := float64(o.Layers)
	if f.NearMessages > 0 {
		us += layers*o.RankUS + near/(o.RankGBs*1e3)
	}
	if f.FarMessages > 0 {
		sharing := float64(min(f.Ranks, o.RanksPerNode))
		us += layers*o.NodeUS + f.FarMessages/2*o.MessageUS +
			far/(min(o.LinkGBs, o.NodeGBs/sharing)*1e3)
	}
	return us
}

// Visited is how likely a row that chooses k of so many experts has chosen one of those that a rank
// holds: 1 − C(experts − held, k) / C(experts, k). The sum over the ranks is how many a row visits.
func Visited(experts, k, held int) float64 {
	none := 1.0
	for i := range k {
		none *= float64(max(experts-held-i, 0)) / float64(experts-i)
	}
	return 1 - none
}

// Check returns an error that names what cannot be.
func (o *ExpertOptions) Check() error {
	for _, x := range []struct {
		name          string
		value, lo, hi int
	}{
		{"hidden-size", o.Hidden, 1, 1 << 20}, {"moe-intermediate-size", o.Inner, 1, 1 << 20},
		{"num-experts", o.Experts, 1, 1 << 16},
		{"num-experts-per-tok", o.PerToken, 1, o.Experts}, {"layers", o.Layers, 1, 1 << 16},
		{"ranks-per-node", o.RanksPerNode, 1, MaxRanks}, {"rows", o.Rows, 1, 1 << 20},
	} {
		if x.value < x.lo || x.value > x.hi {
			return fmt.Errorf("--%s %d is not %d to %d", x.name, x.value, x.lo, x.hi)
		}
	}
	for _, x := range []struct {
		name      string
		value, lo float64
	}{
		{"dispatch-bytes", o.DispatchBytes, 0.5}, {"combine-bytes", o.CombineBytes, 0.5},
		{"weight-bits", o.WeightBits, 1}, {"memory-bandwidth", o.MemoryGBs, 1e-3},
		{"tflops", o.TFLOPS, 1e-3}, {"rank-bandwidth", o.RankGBs, 1e-3},
		{"link-bandwidth", o.LinkGBs, 1e-3}, {"node-bandwidth", o.NodeGBs, 1e-3},
		{"rank-latency", o.RankUS, 0},
		{"node-latency", o.NodeUS, 0}, {"message-time", o.MessageUS, 0},
	} {
		if !(x.value >= x.lo && x.value <= 1e6) {
			return fmt.Errorf("--%s %g is not %g to 1e+06", x.name, x.value, x.lo)
		}
	}
	return nil
}
