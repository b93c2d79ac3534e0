package queue

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Kind is the first byte of every record.
type Kind byte

// Records from the driver to a rank.
const (
	// KindInit carries the rank's configuration as JSON; it is the first record.
	KindInit Kind = iota + 1
	// KindPlan carries a step.Plan.
	KindPlan
	// KindCall carries a call: see AppendCall.
	KindCall
	// KindShutdown asks the rank to end.
	KindShutdown
)

// Records from a rank to the driver.
const (
	// KindProgress carries a Progress as JSON while the rank starts.
	KindProgress Kind = iota + 64
	// KindReady carries Ready as JSON: the rank accepts plans.
	KindReady
	// KindResult carries a step.Result.
	KindResult
	// KindReply carries the answer to a call: see AppendReply.
	KindReply
	// KindFailure carries a Failure as JSON; the rank ends after it.
	KindFailure
	// KindWeightsCache carries a WeightsCache as JSON, at any time.
	KindWeightsCache
)

// CUDA is Init.Device for NVIDIA's GPUs.
const CUDA = "cuda"

// CUDADriverVariable is a variable of the environment of ranks on GPUs. With a value that begins
// with the word "machine", and options of it after a comma (double.Parse), their kernels are
// executed on the host, by a machine for their PTX: to see that they compute what they should, not
// to serve.
const CUDADriverVariable = "EAGLERAY_CUDA_DRIVER"

// CUDAMachine says that the variable asks for the machine, and with which options.
func CUDAMachine() (options string, ok bool) {
	word, options, _ := strings.Cut(os.Getenv(CUDADriverVariable), ",")
	return options, word == "machine"
}

// Init is a rank's whole configuration, the first record it receives.
type Init struct {
	Rank int `json:"rank"`
	// Layout is how the ranks of the group divide the model.
	Layout layout.Layout `json:"layout"`
	// Stages are the stages of the pipeline.
	Stages layout.Stages `json:"stages,omitempty"`
	// ModelDir is the checkpoint's folder on the driver's node, "" for the built-in model.
	ModelDir string `json:"model_dir"`
	// Repo, Revision and DownloadDir are where a node that lacks the folder gets it: the Hub
	// repository, the commit, and the cache. Repo is "" for a folder that did not come from the
	// Hub.
	Repo        string `json:"repo,omitempty"`
	Revision    string `json:"revision,omitempty"`
	DownloadDir string `json:"download_dir,omitempty"`
	LoadFormat  string `json:"load_format"`
	// WeightsCache is the folder, on each node, of packed weights; "" for none.
	WeightsCache string `json:"weights_cache,omitempty"`
	// Files are those of the folder that the group computes by: the rank loads no others. nil is
	// for whatever is there.
	Files []File `json:"files,omitempty"`
	// Holder is a process on the driver's host that has them open whatever becomes of their names;
	// 0 is for none, then nothing but their names leads to them.
	Holder int `json:"holder,omitempty"`
	// Later says that the weights come with an update, or with the end of a sleep: those of the
	// files are not loaded.
	Later bool `json:"later,omitempty"`
	// Tokenizer is the folder of the tokenizer on the driver's node, "" for the model's own, and
	// TokenizerFiles what Files is for the model.
	Tokenizer      string `json:"tokenizer,omitempty"`
	TokenizerFiles []File `json:"tokenizer_files,omitempty"`
	// Overrides are members of config.json that are other ones than the file says
	// (model.Override).
	Overrides map[string]json.RawMessage `json:"overrides,omitempty"`
	// Quantization is how weights are quantised as they are loaded, "" for not.
	Quantization string `json:"quantization,omitempty"`
	// DType is resolved: bfloat16, float16 or float32.
	DType string `json:"dtype"`
	// CacheDType is that of the KV cache (compute.ParseCacheDType); "" is the model's.
	CacheDType string `json:"cache_dtype,omitempty"`
	// Device is what computes: "" for the CPU, or CUDA.
	Device string `json:"device,omitempty"`
	// Eager has a GPU compute launch by launch.
	Eager bool `json:"eager,omitempty"`
	// Fast lets a GPU's products have bits that depend on the batch.
	Fast bool `json:"fast,omitempty"`
	// ISA is an instruction set of the CPU, "" for the best of this machine.
	ISA string `json:"isa"`
	// Threads is how many cores a rank computes on; 0 divides its node's among the ranks there.
	Threads int `json:"threads"`
	// Bind is how the ranks of a node are bound to its processors (machine.Demand).
	Bind string `json:"bind,omitempty"`
	// Seed is of dummy weights (LoadFormat "dummy") only; requests have seeds of their own.
	Seed uint64 `json:"seed"`
	// Blocks and BlockSize size the KV cache; the scheduler counts on them.
	Blocks    int `json:"blocks"`
	BlockSize int `json:"block_size"`
	// Groups are those of the layers, which have blocks of their own.
	Groups  grouping.Groups `json:"groups,omitzero"`
	MaxSeqs int             `json:"max_seqs"`
	// Nodes are the numbers of the nodes that the ranks are on.
	Nodes []int `json:"nodes,omitempty"`
	// RedundantExperts is how many experts of a layer have copies on several ranks.
	RedundantExperts int `json:"redundant_experts,omitempty"`
	// States is how many requests the cache keeps the states of (compute.CacheShape).
	States int `json:"states,omitempty"`
	// DraftStates are the last of States, for those before drafts.
	DraftStates int `json:"draft_states,omitempty"`
	MaxModelLen int `json:"max_model_len"`
	// MaxInFlight is how many plans may be in flight.
	MaxInFlight int `json:"max_in_flight"`
	// DraftRows is how many rows a plan has at most whose result says what tokens constraints
	// force, 0 where no tokens are drafted.
	DraftRows int `json:"draft_rows,omitempty"`
	// Draft is the draft model of the rank that samples, nil for none.
	Draft *Draft `json:"draft,omitempty"`
	// DraftFiles are what Files is for the model.
	DraftFiles []File `json:"draft_files,omitempty"`
	// Heap is how many bytes Go's heap may have in a process of the rank's own, beside
	// HeapPerThread for each of its threads; 0 is no limit.
	Heap          int64 `json:"heap,omitempty"`
	HeapPerThread int64 `json:"heap_per_thread,omitempty"`
	// Constraints is how many bytes all constraints on answers may have together; 0 is 512 MiB.
	Constraints int64 `json:"constraints,omitempty"`
	// Ends are the tokens that end an answer, which no constraint has within it.
	Ends []int32 `json:"ends,omitempty"`
	// Null, unless it is nil, makes a rank without a model.
	Null *Null `json:"null,omitempty"`
}

// Draft is a model that guesses tokens.
type Draft struct {
	// Predictor says that it is the layer behind the model's last one, of the model's own files.
	Predictor bool `json:"predictor,omitempty"`
	// Taps are, of a head of EAGLE-3, the layers of the model before which it is given the hidden
	// states.
	Taps []int `json:"taps,omitempty"`
	// Dir, Repo and Revision are what ModelDir, Repo and Revision of Init are for the model.
	Dir      string `json:"dir"`
	Repo     string `json:"repo,omitempty"`
	Revision string `json:"revision,omitempty"`
	// MaxModelLen is how many positions it knows at most, Rows how many it computes at a time.
	MaxModelLen int `json:"max_model_len"`
	Rows        int `json:"rows"`
}

// Head says that it is no whole model, but goes on from the model's hidden states.
func (d *Draft) Head() bool { return d.Predictor || len(d.Taps) > 0 }

// File is the identity of a file of a model (checkpoint.File).
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
}

// Null describes ranks that hold no model and answer every plan with given tokens, by which the
// cost of everything else is measured.
type Null struct {
	// Tokens are those that requests get by turns, at least one.
	Tokens []int32 `json:"tokens"`
	// StepTime is how long a plan keeps the rank busy.
	StepTime time.Duration `json:"step_time"`
	// Elsewhere says that it is no core of this machine that is busy.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

// Progress is how far a rank's start has come.
type Progress struct {
	// Phase is what the rank is doing: "load", "download" and a file.
	Phase string `json:"phase"`
	// Done and Total are bytes, or 0 when the phase has no measure.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// WeightsCache is what became of a rank's file in the folder of packed weights.
type WeightsCache struct {
	// Found says that weights came from the file, Stored that it was written; Bytes is its weights.
	Found  bool  `json:"found,omitempty"`
	Stored bool  `json:"stored,omitempty"`
	Bytes  int64 `json:"bytes,omitempty"`
	// Failure is why it was not used or written, "" if it was.
	Failure string `json:"failure,omitempty"`
	// Over says that what Ready's Storing speaks of has ended, by any of these or without.
	Over bool `json:"over,omitempty"`
}

// Ready is what a rank says of itself when its start is complete.
type Ready struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// ISA and Threads are what it computes with.
	ISA     string `json:"isa"`
	Threads int    `json:"threads"`
	// Kernels says what ISA is, and why.
	Kernels string `json:"kernels,omitempty"`
	// Binding says which processors its threads are bound to, and why.
	Binding string `json:"binding,omitempty"`
	// WeightBytes is the size of its shard.
	WeightBytes int64 `json:"weight_bytes"`
	// Storing says that packed weights are being stored: a WeightsCache follows that is Over.
	Storing bool `json:"storing,omitempty"`
	// Past is what it has done since it loaded that; nil when it has just done so.
	Past *Past `json:"past,omitempty"`
}

// Past is what a reused rank has computed in earlier groups.
type Past struct {
	// Done is the last plan that it has executed, 0 for none, and Trail what the last ones that it
	// has begun were about, oldest first.
	Done  uint64        `json:"done"`
	Trail []step.Digest `json:"trail,omitempty"`
}

// Failure is a rank's own account of why it cannot go on.
type Failure struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Phase is what the rank was doing: "init", "load", "step", "call".
	Phase string `json:"phase"`
	// Step is the plan in hand, 0 for none.
	Step uint64 `json:"step,omitempty"`
	// Type is the Go type of the error, "panic" for a panic.
	Type    string `json:"type"`
	Message string `json:"message"`
	// Stack is the goroutine's stack after a panic.
	Stack string `json:"stack,omitempty"`
	// Follows says that the error only follows from the end of another rank, of which others know
	// more.
	Follows bool `json:"follows,omitempty"`
	// Missing are the ranks that did not come in time, when the error is that this rank has waited
	// for them in vain.
	Missing []int `json:"missing,omitempty"`
	// Disagrees says that this rank and others were not in the same step.
	Disagrees bool `json:"disagrees,omitempty"`
	// Unrelated says that no request can be the cause.
	Unrelated bool `json:"unrelated,omitempty"`
}

// Split returns a record's kind and body.
func Split(record []byte) (Kind, []byte, error) {
	if len(record) == 0 {
		return 0, nil, fmt.Errorf("queue: empty record")
	}
	return Kind(record[0]), record[1:], nil
}

// AppendJSON encodes v as a record of the given kind.
func AppendJSON(b []byte, kind Kind, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("queue: encode record of kind %d: %w", kind, err)
	}
	return append(append(b, byte(kind)), body...), nil
}

// SendJSON sends v as a record of the given kind, without a deadline.
func SendJSON(p Port, kind Kind, v any) error {
	record, err := AppendJSON(nil, kind, v)
	if err != nil {
		return err
	}
	return p.Send(record, time.Time{})
}

// Call is a request to run a method on every rank.
type Call struct {
	// ID is answered by the Reply; ids of one driver are never reused.
	ID uint64
	// Step is the last plan sent before the call.
	Step uint64
	// Timeout is how long after Sent a rank may still begin it; 0 is no limit. Sent is in
	// nanoseconds of the driver's clock: a rank of another host, whose clock may differ, counts
	// from when it takes the call up.
	Timeout time.Duration
	Sent    int64
	Method  string
	Args    []byte
}

// AppendCall encodes c as a KindCall record. The method's name has at most 65,535 bytes.
func AppendCall(b []byte, c *Call) []byte {
	b = append(b, byte(KindCall))
	b = binary.LittleEndian.AppendUint64(b, c.ID)
	b = binary.LittleEndian.AppendUint64(b, c.Step)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Timeout))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Sent))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.Method)))
	b = append(b, c.Method...)
	return append(b, c.Args...)
}

// callHead is the length of a call before its method.
const callHead = 8 + 8 + 8 + 8 + 2

// ParseCall decodes the body of a KindCall record; Args is a view of body.
func ParseCall(body []byte) (Call, error) {
	if len(body) < callHead {
		return Call{}, fmt.Errorf("queue: call of %d bytes is too short", len(body))
	}
	n := int(binary.LittleEndian.Uint16(body[32:]))
	if len(body) < callHead+n {
		return Call{}, fmt.Errorf("queue: call of %d bytes names a method of %d", len(body), n)
	}
	c := Call{ID: binary.LittleEndian.Uint64(body), Step: binary.LittleEndian.Uint64(body[8:]),
		Timeout: time.Duration(binary.LittleEndian.Uint64(body[16:])),
		Sent:    int64(binary.LittleEndian.Uint64(body[24:])),
		Method:  string(body[callHead : callHead+n]), Args: body[callHead+n:]}
	if c.Timeout < 0 {
		return Call{}, fmt.Errorf("queue: call has a timeout of %v", c.Timeout)
	}
	return c, nil
}

// Reply is one rank's answer to a Call.
type Reply struct {
	ID   uint64
	Rank uint32
	// Type and Failure describe the error, both "" for success.
	Type, Failure string
	Value         []byte
}

// AppendReply encodes r as a KindReply record. Type is cut to 65,535 bytes.
func AppendReply(b []byte, r *Reply) []byte {
	kind := r.Type[:min(len(r.Type), 1<<16-1)]
	b = append(b, byte(KindReply))
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	b = binary.LittleEndian.AppendUint32(b, r.Rank)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(kind)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Failure)))
	b = append(b, kind...)
	b = append(b, r.Failure...)
	return append(b, r.Value...)
}

// replyHead is the length of a reply before its texts.
const replyHead = 8 + 4 + 2 + 4

// ParseReply decodes the body of a KindReply record; Value is a view of body.
func ParseReply(body []byte) (Reply, error) {
	if len(body) < replyHead {
		return Reply{}, fmt.Errorf("queue: reply of %d bytes is too short", len(body))
	}
	n := uint64(binary.LittleEndian.Uint16(body[12:]))
	m := uint64(binary.LittleEndian.Uint32(body[14:]))
	rest := body[replyHead:]
	if uint64(len(rest)) < n+m {
		return Reply{}, fmt.Errorf("queue: reply of %d bytes announces texts of %d", len(body), n+m)
	}
	return Reply{ID: binary.LittleEndian.Uint64(body), Rank: binary.LittleEndian.Uint32(body[8:]),
		Type: string(rest[:n]), Failure: string(rest[n : n+m]), Value: rest[n+m:]}, nil
}
