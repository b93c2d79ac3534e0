// Package calls is the table of the calls that a driver makes to its ranks: both sides use these
// values. A rank serves calls and plans in the order in which they were sent. The handlers (package
// worker) describe the calls.
package calls

import (
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/offload"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// Calls about a rank itself.
var (
	// CheckHealth does nothing: its reply is a sign of life.
	CheckHealth = rpc.Method[rpc.None, rpc.None]{Name: "check_health"}
	// Echo returns its arguments.
	Echo     = rpc.Method[rpc.Raw, rpc.Raw]{Name: "echo"}
	RankInfo = rpc.Method[rpc.None, queue.Ready]{Name: "rank_info"}
	Probe    = rpc.Method[rpc.None, Probed]{Name: "probe"}
	// Times returns the recorded times, and records those of the next plans, as many as its
	// argument.
	Times = rpc.Method[int, []StepTimes]{Name: "step_times"}
	// ExpertLoad returns what the rank has counted of the rows that were sent to each expert since
	// it loaded its weights: the sum of all ranks is each row once. A rank with nothing to say
	// answers with no layers.
	ExpertLoad = rpc.Method[rpc.None, []LayerLoad]{Name: "expert_load"}
	// Sleep frees the memory of the parts that sleep, and allocates that of the others again.
	Sleep = rpc.Method[Asleep, rpc.None]{Name: "sleep"}
)

// Calls about an update of the weights. The string argument is the update's id.
var (
	WeightsOpen = rpc.Method[weights.Update, weights.Opened]{Name: "weights_open"}
	// WeightsGet lets the ranks of its argument receive the update from the driver.
	WeightsGet  = rpc.Method[[]int, weights.Opened]{Name: "weights_get"}
	WeightsLoad = rpc.Method[string, rpc.None]{Name: "weights_load"}
	WeightsSwap = rpc.Method[string, rpc.None]{Name: "weights_swap"}
	WeightsDrop = rpc.Method[rpc.None, rpc.None]{Name: "weights_drop"}
	// AdapterLoad makes some more of an adapter, which came as an update does by WeightsOpen and
	// WeightsGet, and returns whether the rank has all of it: it takes few milliseconds, so that it
	// holds up no step for long. AdaptersTrim drops all adapters but those of the updates of its
	// argument.
	AdapterLoad  = rpc.Method[string, bool]{Name: "adapter_load"}
	AdaptersTrim = rpc.Method[[]string, rpc.None]{Name: "adapters_trim"}
	// WeightsRoom and WeightsRoomSent reserve memory: for an update that ranks map, and for one
	// that they are sent.
	WeightsRoom     = rpc.Method[rpc.None, weights.Opened]{Name: "weights_room"}
	WeightsRoomSent = rpc.Method[weights.Room, rpc.None]{Name: "weights_room_sent"}
)

// Calls about experts that move between ranks.
var (
	// ExpertsLoad makes the experts that a rank lacks of a layer's placement, ExpertsMove has rows
	// go to them, ExpertsDrop frees them.
	ExpertsLoad = rpc.Method[Experts, rpc.None]{Name: "experts_load"}
	ExpertsMove = rpc.Method[Experts, rpc.None]{Name: "experts_move"}
	ExpertsDrop = rpc.Method[rpc.None, rpc.None]{Name: "experts_drop"}
)

// Experts is where the experts of a layer are.
type Experts struct {
	Layer int               `json:"layer"`
	At    balance.Placement `json:"at"`
}

// Calls about KV blocks that engines exchange.
var (
	KVOpen  = rpc.Method[kvtransfer.Open, kvtransfer.Address]{Name: "kv_open"}
	KVRanks = rpc.Method[[]kvtransfer.Address, rpc.None]{Name: "kv_ranks"}
	// KVPin is answered by the first rank of the blocks' place when the peer has fetched the blocks
	// or they are released.
	KVPin     = rpc.Method[kvtransfer.Pin, bool]{Name: "kv_pin"}
	KVRelease = rpc.Method[kvtransfer.Secret, rpc.None]{Name: "kv_release"}
	// KVFetch is answered when a rank no longer writes to the blocks; KVCancel ends the fetch of an
	// id.
	KVFetch  = rpc.Method[kvtransfer.Fetch, kvtransfer.Fetched]{Name: "kv_fetch"}
	KVCancel = rpc.Method[uint64, rpc.None]{Name: "kv_cancel"}
)

// Calls about KV blocks that ranks keep in files.
var (
	OffloadOpen = rpc.Method[offload.Open, offload.Opened]{Name: "offload_open"}
	// OffloadLoad and OffloadStore are answered when a rank no longer writes to, or reads, the
	// blocks.
	OffloadLoad  = rpc.Method[offload.Blocks, offload.Done]{Name: "offload_load"}
	OffloadStore = rpc.Method[offload.Blocks, offload.Done]{Name: "offload_store"}
	// OffloadRemove removes the files of all ranks and engines that share a folder.
	OffloadRemove = rpc.Method[rpc.None, rpc.None]{Name: "offload_remove"}
)

// Public lists the calls that users may make by POST /collective_rpc: those that change nothing.
func Public() []string {
	return []string{CheckHealth.Name, Echo.Name, Probe.Name, RankInfo.Name, Times.Name}
}

// StepTimes are the times of a plan on one rank, in nanoseconds since 1970 by the clock of its
// host.
type StepTimes struct {
	Plan uint64 `json:"plan"`
	// Received is when its record was there, Started when it was decoded, Executed when its tokens
	// were known, and Answered when its result was sent.
	Received int64 `json:"received"`
	Started  int64 `json:"started"`
	Executed int64 `json:"executed"`
	Answered int64 `json:"answered"`
}

// Probed is the answer to Probe.
type Probed struct {
	// Clock is its time, in nanoseconds of Unix time.
	Clock int64 `json:"clock"`
	// Niceness is that of its process, ISA what it computes with.
	Niceness int    `json:"niceness"`
	ISA      string `json:"isa"`
}

// LayerLoad is how many rows were sent to each expert of a layer of the model.
type LayerLoad struct {
	Layer int     `json:"layer"`
	Rows  []int64 `json:"rows"`
}

// Asleep lists the parts of a rank's memory that are freed. The others are allocated, but for
// weights with Later: these come with the next update.
type Asleep struct {
	Weights bool `json:"weights"`
	KVCache bool `json:"kv_cache"`
	Later   bool `json:"later,omitempty"`
}
