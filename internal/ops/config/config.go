// Package config is the one typed configuration of the program: read from flags, a YAML file and
// the environment, and validated once. It stays in the driver: a rank is told its share by a
// message of its own (queue.Init).
package config

import (
	"cmp"
	"time"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Config says what is served and how. The names of its parts follow vLLM's flags; the zero value of
// a field is its default unless Default sets another.
type Config struct {
	Model    Model
	LoRA     LoRA
	Cache    Cache
	Transfer Transfer
	Parallel Parallel
	Schedule Schedule
	// Speculative is --speculative-config.
	Speculative Speculative
	Queue       Queue
	Recovery    Recovery
	Server      Server
	// Warnings are flags that were accepted without effect, each with the reason.
	Warnings []string

	// flags are those that EngineFlags has defined.
	flags *pflag.FlagSet
}

// Model says which model is run and in what arithmetic.
type Model struct {
	// Path is a local folder, a Hub repo id, the address of a bucket, or "" for the built-in model.
	Path string
	// ServedNames are the names clients use; empty is Path (or the built-in model's name).
	ServedNames []string
	// Tokenizer is another folder or repo to take the tokenizer from.
	Tokenizer string
	// SkipTokenizerInit serves token ids only.
	SkipTokenizerInit bool
	// Revision is the branch, tag or commit of a Hub repo.
	Revision string
	// DownloadDir overrides the Hugging Face cache.
	DownloadDir string
	// WeightsCache is the folder of packed weights on each node, "" for none.
	WeightsCache string
	// LoadFormat is auto, safetensors or dummy.
	LoadFormat string
	// Quantization is how weights are quantised as they are loaded, "" for not.
	Quantization string
	// DType is auto, bfloat16, float16 or float32.
	DType string
	// MaxModelLen bounds prompt plus output in tokens; 0 is what the model allows.
	MaxModelLen int
	// Seed drives requests without a seed of their own, which are random when it is 0, and dummy
	// weights.
	Seed uint64
	// GenerationConfig is auto (the model's), vllm (none) or a folder.
	GenerationConfig string
	// OverrideGenerationConfig is a JSON object that replaces single values.
	OverrideGenerationConfig string
	// ChatTemplate is a file, or the template itself.
	ChatTemplate string
	// TrustRequestChatTemplate lets requests bring a template.
	TrustRequestChatTemplate bool
	// MaxLogprobs bounds logprobs a request may ask for; -1 is no bound.
	MaxLogprobs int
	// LogprobsMode is RawLogprobs for the model's log-probabilities, or ProcessedLogprobs for those
	// that tokens are drawn by; RawLogits and ProcessedLogits are logits in their place.
	LogprobsMode string
	// Runner is auto or generate for tokens, or pooling for embeddings and scores.
	Runner string
	// PoolerConfig is a JSON object that says how a model pools, HFOverrides one of what
	// goes before the model's config.json; "" is the model's own.
	PoolerConfig, HFOverrides string
	// EnableAutoToolChoice lets models choose whether to call tools.
	EnableAutoToolChoice bool
	// ToolCallParser and ReasoningParser name how the model writes calls and reasoning: AutoParser
	// is what its chat template shows, "" leaves them in the text.
	ToolCallParser, ReasoningParser string
	// ExcludeToolsWhenToolChoiceNone keeps tools that must not be called from the template.
	ExcludeToolsWhenToolChoiceNone bool
}

// Values of LogprobsMode, vLLM's names.
const (
	RawLogprobs       = "raw_logprobs"
	ProcessedLogprobs = "processed_logprobs"
	RawLogits         = "raw_logits"
	ProcessedLogits   = "processed_logits"
)

// AutoParser chooses a parser by the chat template.
const AutoParser = "auto"

// Cache sizes the paged KV cache.
type Cache struct {
	// MemoryUtilization is the part of each host's limit of memory that a server may take, which
	// its KV caches fill then; 0 is defaultUtilization, and smaller caches.
	MemoryUtilization float64
	// MemoryBytes is the size of each rank's cache; 0 chooses one.
	MemoryBytes int64
	// BlockSize is the number of positions in a block, a multiple of 16.
	BlockSize int
	// Blocks overrides the number of blocks; 0 follows from MemoryBytes.
	Blocks int
	// DType is auto for the model's type, or one of ours; of two names it is the first in
	// cacheDTypes.
	DType string
	// PrefixCaching shares blocks of equal beginnings.
	PrefixCaching bool
	// OneGroup has layers with windows keep what those without do.
	OneGroup bool
	// Offloading is where blocks are stored beside the cache.
	Offloading Offloading
}

// defaultUtilization is vLLM's.
const defaultUtilization = 0.9

// Share is the part of each host's limit of memory that a server may take: all of it where the size
// of its KV caches is given.
func (c *Cache) Share() float64 {
	if c.Asked() != "" {
		return 1
	}
	return cmp.Or(c.MemoryUtilization, defaultUtilization)
}

// Asked is the flag that gives the size of KV caches, "" for none.
func (c *Cache) Asked() string {
	switch {
	case c.Blocks > 0:
		return "--num-gpu-blocks-override"
	case c.MemoryBytes > 0:
		return "--kv-cache-memory-bytes"
	}
	return ""
}

// Parallel says how many workers there are and what starts them.
type Parallel struct {
	// TensorParallelSize is the number of ranks each layer is cut into.
	TensorParallelSize int
	// PipelineParallelSize is the number of stages the layers are divided among.
	PipelineParallelSize int
	// PipelineLayerSplit is the number of layers of each stage; empty balances the stages by the
	// bytes of their weights.
	PipelineLayerSplit []int
	// PrefillContextParallelSize is the number of ranks that divide long prompts.
	PrefillContextParallelSize int
	// DataParallelSize is the number of engines, each with a group of ranks of its own; or with
	// ExpertParallel the number of places of one group, among which its requests are divided.
	DataParallelSize int
	// ExpertParallel has ranks hold whole experts instead of a share of each; EPLB moves them.
	ExpertParallel bool
	EPLB           EPLB
	// DataParallelSizeLocal is how many of them each node has, or takes part in: an equal part,
	// which is at least one; 0 is not given. Of several servers it is how many this one has.
	DataParallelSizeLocal int
	// Balanced says which of the engines this server has where others have the rest.
	Balanced Balanced
	// Backend is uni, mp, ray, or "" for uni with one rank and mp with more.
	Backend string
	// Device is what computes: DeviceAuto, CPU or CUDA. Eager has a GPU compute launch by launch,
	// without graphs, CUDAFast to bits that depend on the batch.
	Device   string
	Eager    bool
	CUDAFast bool
	// CPUThreads is the number of cores each rank computes on; 0 divides the machine's.
	CPUThreads int
	// CPUBind is how a machine's ranks are bound to its processors: machine.BindAuto, BindNone or a
	// list of sets (see machine.Demand).
	CPUBind string
	// CPUISA is an instruction set (portable, avx2, avx512, avx512bf16, amx); "" is the fastest
	// that there is.
	CPUISA string
	// Nodes are the machines that the ranks are divided among without Ray.
	Nodes Nodes
	// Ray says how ranks are placed when Backend is ray.
	Ray Ray
}

// Layout is how the ranks of one replica divide the model.
func (p *Parallel) Layout() layout.Layout {
	l := layout.Layout{TP: p.TensorParallelSize, PP: p.PipelineParallelSize,
		PCP: p.PrefillContextParallelSize, EP: p.ExpertParallel}
	if l.EP {
		l.DP = p.DataParallelSize
	}
	return l.Sizes()
}

// Engines is how many engines share the requests, each with ranks of its own.
func (p *Parallel) Engines() int {
	if p.ExpertParallel {
		return 1
	}
	if p.Balanced.Any() {
		return max(1, p.DataParallelSizeLocal)
	}
	return max(1, p.DataParallelSize)
}

// SetEngines makes them so many, where they have ranks of their own.
func (p *Parallel) SetEngines(n int) {
	switch {
	case p.ExpertParallel:
	case p.Balanced.Any():
		p.DataParallelSizeLocal = n
	default:
		p.DataParallelSize = n
	}
}

// MaxInFlight is how many plans the ranks may have been sent without their results being known: one
// for each stage, and one more with asynchronous scheduling.
func (c *Config) MaxInFlight() int {
	stages := c.Parallel.Layout().PP
	if c.Schedule.Async {
		return stages + 1
	}
	return stages
}

// Ray says where Ray is and how it places the ranks.
type Ray struct {
	// Address is the cluster's (host:port of its GCS); "" looks for a running one and else starts
	// one.
	Address string
	// Namespace is the Ray namespace of actors and of groups adopted by name.
	Namespace string
	// Python is the interpreter that has Ray.
	Python string
	// RuntimeEnv is the runtime environment of the actors: JSON, YAML, or a file.
	RuntimeEnv string
	// Nsight runs the actors under Nsight Systems.
	Nsight bool
	// PlacementGroup is the id or name of a group to adopt instead of making one.
	PlacementGroup string
	// BundleIndices is the exact order of bundles, such as 2,3.
	BundleIndices string
	// SkipBundle is a bundle that is not to be used, -1 for none.
	SkipBundle int
	// DeviceKey is the resource a rank needs: CPU, GPU, or a custom one.
	DeviceKey string
	// PerWorker is how much of it each rank takes.
	PerWorker float64
	// PlacementTimeout is how long to wait for resources; 0 waits half an hour for those that are
	// in use, and not at all for those that no node has.
	PlacementTimeout time.Duration
	// StrictEnv refuses nodes on which variables differ from the driver's.
	StrictEnv bool
	// EnvAllow are names of variables sent to nodes although they look like secrets.
	EnvAllow []string
	// NodeIP is the driver's address on the cluster's network; "" is what Ray says.
	NodeIP string
}

// Schedule bounds a step.
type Schedule struct {
	// MaxNumSeqs is the most requests that run at once.
	MaxNumSeqs int
	// MaxNumBatchedTokens is the most tokens one step computes.
	MaxNumBatchedTokens int
	// ChunkedPrefill cuts prompts to fit a step.
	ChunkedPrefill bool
	// LongPrefillTokenThreshold bounds one prompt's tokens in a step; 0 is no bound.
	LongPrefillTokenThreshold int
	// Policy is fcfs or priority.
	Policy string
	// MaxNumQueuedReqs refuses requests beyond so many waiting sequences, of which a request has n
	// for each of its prompts; 0 is no bound.
	MaxNumQueuedReqs int
	// Async makes and sends the next plan before the result of the last one is known.
	Async bool
}

// Queue carries steps to the ranks and results back.
type Queue struct {
	// Transport is auto (shared memory with ranks of this host, TCP with others) or link (TCP with
	// all).
	Transport string
	// MemoryBytes is the budget of all its shared memory.
	MemoryBytes int64
	// PortRange is the first and last port the driver listens on for ranks of other hosts; 0, 0 is
	// any.
	PortRange [2]int
	// StallWarning is how long a rank may be stalled with work queued before it is reported.
	StallWarning time.Duration
	// StepTimeout fails the group when no rank has moved for so long during a step.
	StepTimeout time.Duration
}

// Recovery says what follows from the failure of a group of ranks.
type Recovery struct {
	// OnFailure is restart (another group takes its place, and requests go on), shrink (one with
	// fewer ranks does, while there is no place for all) or exit.
	OnFailure string
	// MaxRestarts within Window are made; one more failure ends the engine.
	MaxRestarts int
	Window      time.Duration
	// OnModelChange is what follows when ranks are started and the model's files are not those that
	// were loaded: keep (these are loaded still), refuse (none is started) or adopt (all ranks load
	// the new ones).
	OnModelChange string
}

// Server is the HTTP surface.
type Server struct {
	Host string
	Port int
	// APIKeys guard every route but a short public list; empty is no guard.
	APIKeys []string
	// AllowedOrigins, AllowedMethods, AllowedHeaders and AllowCredentials are CORS.
	AllowedOrigins, AllowedMethods, AllowedHeaders []string
	AllowCredentials                               bool
	// AllowedHosts are names accepted in the Host header beside loopback ones and the bound
	// address.
	AllowedHosts []string
	// RootPath is a prefix a proxy strips.
	RootPath string
	// EnableRequestIDHeaders echoes X-Request-Id, EnablePromptTokensDetails reports cached tokens.
	EnableRequestIDHeaders, EnablePromptTokensDetails bool
	// DisableAccessLog stops one log line per request; DisableLogStats the periodic figures.
	DisableAccessLog, DisableLogStats bool
	// DisableDocs has no routes that describe the others.
	DisableDocs bool
	// LogFormat is auto (text on a terminal, else logfmt), text, logfmt or json.
	LogFormat string
	// MaxRequestBodyBytes bounds a request's body.
	MaxRequestBodyBytes int64
	// MaxConnections bounds the connections open at once; 0 is what the limit of open files leaves.
	MaxConnections int
	// MaxRequestsPerKey is how many requests of one API key (or address, for those without) are
	// answered at the same time; 0 is no bound.
	MaxRequestsPerKey int
	// StoreDir is the folder that keeps what is to outlive the server: files, batches, responses;
	// "" keeps nothing longer than the process.
	StoreDir string
	// MetricsPrefixes begin the names of the metrics: each is shown once under each of them.
	MetricsPrefixes []string
	Answers         Answers
	Transport       Transport
	Observe         Observe
	// EnableRLHF has the routes by which a trainer steers the server, EnableSleepMode those of
	// sleep alone.
	EnableRLHF, EnableSleepMode bool
	// EnableElasticEP has the routes that change the engines of a running server, which one with
	// keys has without it.
	EnableElasticEP bool
	// AllowedLocalWeights are folders, beside the model's own, from which a trainer may have
	// weights loaded.
	AllowedLocalWeights []string
	// ShutdownTimeoutSeconds is how long SIGTERM lets requests finish.
	ShutdownTimeoutSeconds int
}

// ServedQueue is the default of MaxNumQueuedReqs for a server, whose clients know nothing of each
// other: twice the largest request.
const ServedQueue = 8192

// Default is the configuration without any flag.
func Default() Config {
	return Config{
		Model: Model{LoadFormat: "auto", DType: "auto", GenerationConfig: "auto",
			MaxLogprobs: 20, LogprobsMode: RawLogprobs, EnableAutoToolChoice: true,
			ToolCallParser: AutoParser, ReasoningParser: AutoParser},
		Cache: Cache{DType: "auto", BlockSize: 16, PrefixCaching: true,
			Offloading: Offloading{Backend: "native"}},
		Parallel: Parallel{TensorParallelSize: 1, PipelineParallelSize: 1,
			PrefillContextParallelSize: 1, DataParallelSize: 1,
			CPUBind: machine.BindAuto,
			EPLB:    EPLB{StepInterval: 3000},
			Device:  DeviceAuto,
			Nodes:   Nodes{Count: 1, MasterPort: 29501, Timeout: 10 * time.Minute},
			Ray: Ray{DeviceKey: "CPU", PerWorker: 1,
				SkipBundle: -1}},
		LoRA:     LoRA{MaxRank: 16},
		Transfer: Transfer{HoldTimeout: 8 * time.Minute, FetchTimeout: 30 * time.Second},
		Schedule: Schedule{MaxNumSeqs: 256, MaxNumBatchedTokens: 2048, ChunkedPrefill: true,
			Policy: "fcfs", Async: true},
		Queue: Queue{Transport: "auto", MemoryBytes: 16 << 20, StallWarning: 5 * time.Second,
			StepTimeout: 300 * time.Second},
		Recovery: Recovery{OnFailure: "restart", MaxRestarts: 20, Window: 10 * time.Minute,
			OnModelChange: "keep"},
		Server: Server{Host: "127.0.0.1", Port: 8000, MaxRequestBodyBytes: 32 << 20,
			MetricsPrefixes:        []string{"eagleray"},
			Answers:                Answers{StreamInterval: 1},
			ShutdownTimeoutSeconds: 30, LogFormat: "auto"},
	}
}
