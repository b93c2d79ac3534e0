package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/logging"
)

// UsageError is a mistake in flags, the configuration file or the environment; the message names
// which.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

func usage(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// otherNames are further names of flags.
var otherNames = map[string]string{"drain-timeout": "shutdown-timeout",
	"system-prompt": "system", "device-memory-utilization": "gpu-memory-utilization",
	"data-parallel-backend": "distributed-executor-backend",
	"data-parallel-address": "master-addr", "data-parallel-rpc-port": "master-port"}

// Normalize lets flags be written with underscores, as vLLM does: --max_model_len is
// --max-model-len; and by their other names.
func Normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	return pflag.NormalizedName(cmp.Or(otherNames[name], name))
}

// EngineFlags defines the flags of the model, its cache, ranks and scheduler.
func (c *Config) EngineFlags(f *pflag.FlagSet) {
	markGroup(f) // those before are the command's own
	c.flags = f
	m := &c.Model
	f.StringSliceVar(&m.ServedNames, "served-model-name", nil,
		"names clients use for the model; the first is the one reported "+
			"(default: the model argument)")
	Words(f, "served-model-name")
	f.StringVar(&m.Tokenizer, "tokenizer", "", "folder or Hub repo of another tokenizer")
	f.BoolVar(&m.SkipTokenizerInit, "skip-tokenizer-init", false,
		"serve token ids only, without a tokenizer")
	f.StringVar(&m.Revision, "revision", "", "branch, tag or commit of a Hub repo (default main)")
	f.StringVar(&m.DownloadDir, "download-dir", "",
		"where Hub repos are kept (default: the Hugging Face cache)")
	f.StringVar(&m.WeightsCache, "weights-cache", "",
		"folder, on each node, in which ranks store their packed weights, and map them from at "+
			"the next start (default: none)")
	f.StringVar(&m.LoadFormat, "load-format", m.LoadFormat,
		"auto, safetensors, or dummy for random weights")
	f.StringVar(&m.Quantization, "quantization", "",
		"quantise weights as they are loaded: int8 (int8_per_channel_weight_only), a byte for "+
			"each and a scale for each output, or int4, four bits and a scale for each 32 "+
			"inputs; int4_g64, int4_g128 for each 64 or 128 (default: as they are stored)")
	f.StringVar(&m.DType, "dtype", m.DType, "auto, bfloat16, float16 or float32")
	f.Var(&count{value: &m.MaxModelLen, auto: true}, "max-model-len",
		"most tokens of a prompt and its output together, such as 4096, 4k or auto "+
			"(default: what the model allows)")
	f.Uint64Var(&m.Seed, "seed", 0, "seed of requests that bring none, and of dummy weights; 0 "+
		"draws random ones for requests")
	f.StringVar(&m.GenerationConfig, "generation-config", m.GenerationConfig,
		"where sampling defaults come from: auto (the model), vllm (none), or a folder")
	f.StringVar(&m.OverrideGenerationConfig, "override-generation-config", "",
		`JSON object of sampling defaults, such as {"temperature":0.5}`)
	f.StringVar(&m.ChatTemplate, "chat-template", "",
		"file with the chat template, or the template itself")
	f.BoolVar(&m.TrustRequestChatTemplate, "trust-request-chat-template", false,
		"let requests bring a chat template of their own")
	f.IntVar(&m.MaxLogprobs, "max-logprobs", m.MaxLogprobs,
		"most log-probabilities a request may ask for; -1 is no limit")
	f.StringVar(&m.LogprobsMode, "logprobs-mode", m.LogprobsMode,
		"raw_logprobs: the model's log-probabilities; processed_logprobs: those that tokens are "+
			"drawn by, after penalties, temperature, min_p, top_k and top_p; raw_logits, "+
			"processed_logits: logits in their place")

	f.StringVar(&m.Runner, "runner", "auto",
		"generate (auto) for tokens, or pooling for embeddings and scores")
	f.StringVar(&m.PoolerConfig, "pooler-config", "",
		`JSON object of how a model pools, such as {"pooling_type":"MEAN","normalize":false} `+
			"(default: the model's own, else the last token, normalized)")
	f.StringVar(&m.HFOverrides, "hf-overrides", "",
		"JSON object of what goes before config.json: rope_scaling, rope_theta, rope_parameters, "+
			"max_position_embeddings; of a model that pools is_matryoshka, "+
			"matryoshka_dimensions, classifier_from_token, is_original_qwen3_reranker")
	f.StringVar(&m.ReasoningParser, "reasoning-parser", m.ReasoningParser,
		"how the model writes its reasoning: a name, auto for what its chat template shows, or "+
			"none")

	Choices(f, "load-format", loadFormats...)
	Choices(f, "quantization", quantizations...)
	Choices(f, "dtype", dtypes...)
	Choices(f, "generation-config", "auto", "vllm")
	Choices(f, "runner", runners...)
	Choices(f, "logprobs-mode", logprobsModes...)
	Choices(f, "reasoning-parser", reasoningParsers()...)
	Paths(f, PathModel, "tokenizer")
	Paths(f, PathFolder, "download-dir", "weights-cache", "generation-config")
	Paths(f, PathFile, "chat-template")
	markGroup(f, ModelGroup)
	c.LoRA.flagsOf(f)

	k := &c.Cache
	f.Var(&size{value: &k.MemoryBytes}, "kv-cache-memory-bytes",
		"size of each rank's KV cache, such as 2G (default: up to 4G among the ranks, of what "+
			"weights and activations leave)")
	f.Float64Var(&k.MemoryUtilization, "gpu-memory-utilization", 0,
		"part of each machine's (container's) limit of memory that weights, activations and KV "+
			"caches "+
			"may take, and caches then fill, such as 0.5 (default: 0.9, and caches of up to 4G)")
	f.IntVar(&k.BlockSize, "block-size", k.BlockSize,
		"tokens in a KV cache block, a multiple of 16")
	f.StringVar(&k.DType, "kv-cache-dtype", k.DType,
		"auto for the model's type, bfloat16 or float16; in a byte for each value: fp8 "+
			"(fp8_e4m3), with the checkpoint's k_scale and v_scale, else a scale for each token "+
			"and head, which fp8_per_token_head and int8 (int8_per_token_head) always have")
	f.IntVar(&k.Blocks, "num-gpu-blocks-override", 0,
		"number of KV cache blocks, whatever their size")
	f.BoolVar(&k.PrefixCaching, "enable-prefix-caching", k.PrefixCaching,
		"share the KV cache of equal beginnings")
	f.BoolVar(&k.OneGroup, "disable-hybrid-kv-cache-manager", false,
		"have layers with sliding windows keep all that the others do, where a model has both")

	k.Offloading.flagsOf(f)
	f.Var(&c.Transfer, "kv-transfer-config",
		"JSON object of how KV blocks are exchanged with other servers (prefill/decode split), "+
			"such as "+
			`{"kv_connector":"EagleRayConnector","kv_role":"kv_both"}`)

	Choices(f, "kv-cache-dtype", cacheDTypes...)
	markGroup(f, "CacheConfig")

	p := &c.Parallel
	f.IntVar(&p.TensorParallelSize, "tensor-parallel-size", p.TensorParallelSize,
		"ranks each layer is divided among (-tp)")
	f.IntVar(&p.PipelineParallelSize, "pipeline-parallel-size", p.PipelineParallelSize,
		"stages the layers are divided among, each of --tensor-parallel-size ranks (-pp)")
	f.Var(&counts{&p.PipelineLayerSplit}, "pipeline-layer-split",
		"layers of each stage, such as 12,12 (default: stages of equal weights)")
	Alias(f, "pipeline-layer-split", "VLLM_PP_LAYER_PARTITION")
	f.IntVar(&p.PrefillContextParallelSize, "prefill-context-parallel-size",
		p.PrefillContextParallelSize, "ranks the rows of long prompts are divided among (-pcp)")
	f.IntVar(&p.DataParallelSize, "data-parallel-size", p.DataParallelSize,
		"engines that share the requests, each with ranks and a KV cache of its own; with "+
			"--enable-expert-parallel they share the experts and step together (-dp)")
	f.BoolVar(&p.ExpertParallel, "enable-expert-parallel", false,
		"have ranks hold whole experts of a mixture instead of a share of each (-ep)")
	f.BoolVar(&p.EPLB.Enabled, "enable-eplb", false,
		"move experts between ranks while they serve, so that ranks have equal loads")
	f.IntVar(&p.EPLB.Redundant, "num-redundant-experts", 0,
		"experts of each layer that have a copy on another rank, or several")
	f.Var(&eplbValue{eplb: &p.EPLB}, "eplb-config",
		"JSON object of how experts are moved, such as "+
			`{"step_interval":3000,"num_redundant_experts":2}`)
	f.IntVar(&p.DataParallelSizeLocal, "data-parallel-size-local", 0,
		"engines that each node has or takes part in: an equal part of all")
	p.Balanced.flags(f)
	f.StringVar(&p.Backend, "distributed-executor-backend", "",
		"uni (one rank in this process), mp (a process per rank) or ray (an actor per rank) "+
			"(default: uni for one rank, else mp)")
	f.StringVar(&p.Device, "device", p.Device,
		"what computes: cpu, or cuda, which was right on the one GPU it ran on, and slow there")
	f.BoolVar(&p.Eager, "enforce-eager", false,
		"have GPUs compute launch by launch, not by graphs of whole steps")
	f.BoolVar(&p.CUDAFast, "cuda-fast", false,
		"let cuBLASLt sum products in any order: bits depend on what is computed together")
	f.IntVar(&p.CPUThreads, "cpu-threads", 0,
		"cores each rank computes on (default: the machine's, divided)")
	f.StringVar(&p.CPUBind, "cpu-bind", p.CPUBind,
		"processors each rank of a machine is bound to: auto, none, or sets such as 0-3|4-7")
	f.StringVar(&p.CPUISA, "cpu-isa", "",
		"instruction set: portable, avx2, avx512, avx512bf16 or amx (default: the fastest of "+
			"what the CPU has)")

	Choices(f, "distributed-executor-backend", backends...)
	Choices(f, "device", devices...)
	Choices(f, "cpu-bind", "auto", "none")
	Choices(f, "cpu-isa", instructionSets...)

	c.nodeFlags(f)
	f.Lookup("data-parallel-size-local").Hidden = true
	markGroup(f, "ParallelConfig")
	c.rayFlags(f)
	markGroup(f, "RayConfig")

	s := &c.Schedule
	f.Var(&count{value: &s.MaxNumSeqs}, "max-num-seqs", "most requests that run at once")
	f.Var(&count{value: &s.MaxNumBatchedTokens}, "max-num-batched-tokens",
		"most tokens computed in one step")
	f.BoolVar(&s.ChunkedPrefill, "enable-chunked-prefill", s.ChunkedPrefill,
		"cut prompts to fit a step")
	f.IntVar(&s.LongPrefillTokenThreshold, "long-prefill-token-threshold", 0,
		"most tokens of one prompt in a step; 0 is no limit")
	f.StringVar(&s.Policy, "scheduling-policy", s.Policy,
		"order of waiting requests: fcfs or priority")
	f.IntVar(&s.MaxNumQueuedReqs, "max-num-queued-reqs", s.MaxNumQueuedReqs,
		"waiting sequences (n times prompts) beyond which requests are refused; 0 is no limit")
	f.BoolVar(&s.Async, "async-scheduling", s.Async,
		"plan the next step while the ranks compute the one before")
	f.Var(&c.Speculative, "speculative-config",
		"JSON object of how tokens are guessed that a step verifies, which changes no result, "+
			`such as {"method":"ngram","num_speculative_tokens":8}, or with "model":DIR in the `+
			`place of a method, a draft model (-sc)`)
	Choices(f, "scheduling-policy", policies...)
	markGroup(f, "SchedulerConfig")
	DefineKnown(f, engineKnown, &c.Warnings)
	DefineKnown(f, serverKnown, &c.Warnings)
	DefineKnown(f, goneKnown, &c.Warnings)
	DefineKnown(f, foreignKnown, &c.Warnings)
	DefineKnown(f, newestKnown, &c.Warnings)

	q := &c.Queue
	f.StringVar(&q.Transport, "queue-transport", q.Transport,
		"auto (shared memory with workers of this host, TCP with others), or link (TCP with all)")
	f.Var(&size{value: &q.MemoryBytes}, "queue-memory",
		"shared memory of the message queue, such as 16M")
	f.Var(&ports{&q.PortRange}, "queue-port-range",
		"ports at which workers of other hosts may connect, such as 20000-20100 "+
			"(default: any free one)")
	f.Var(&seconds{&q.StallWarning}, "stall-warning",
		"how long a worker may be stalled with work queued before it is reported")
	f.Var(&seconds{&q.StepTimeout}, "execute-model-timeout-seconds",
		"how long no worker may move during a step before the engine fails")
	Alias(f, "execute-model-timeout-seconds", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")

	f.BoolVar(&c.Server.EnableSleepMode, "enable-sleep-mode", false,
		"answer /sleep and /wake_up, which give memory back and take it again")

	r := &c.Recovery
	f.StringVar(&r.OnFailure, "on-failure", r.OnFailure,
		"what follows from the loss of a worker: restart (new workers take over, and requests go "+
			"on), shrink (fewer do while there is no place for all) or exit")
	f.IntVar(&r.MaxRestarts, "max-restarts", r.MaxRestarts,
		"restarts within --restart-window; one more failure ends the engine")
	f.Var(&seconds{&r.Window}, "restart-window", "time in which --max-restarts are allowed")
	f.StringVar(&r.OnModelChange, "on-model-change", r.OnModelChange,
		"what follows when workers are started and the model's files are others by now: keep (go "+
			"on with those that were loaded), refuse, or adopt (all workers load the new ones)")
	Choices(f, "queue-transport", transports...)
	Choices(f, "on-failure", failures...)
	Choices(f, "on-model-change", modelChanges...)
	markGroup(f, "EngineConfig")
}

// rayFlags defines the flags of --distributed-executor-backend ray.
func (c *Config) rayFlags(f *pflag.FlagSet) {
	r := &c.Parallel.Ray
	f.StringVar(&r.Address, "ray-address", "",
		"address of the Ray cluster, such as 10.0.0.1:6379, which chooses "+
			"--distributed-executor-backend ray (default: RAY_ADDRESS, else a cluster that runs "+
			"here, else a new local one)")
	Alias(f, "ray-address", "RAY_ADDRESS")
	f.StringVar(&r.Namespace, "ray-namespace", "",
		"Ray namespace of the actors, and of a placement group adopted by name")
	f.StringVar(&r.Python, "ray-python", "",
		"Python that has Ray (default: that of $VIRTUAL_ENV, else python3)")
	f.StringVar(&r.RuntimeEnv, "ray-runtime-env", "",
		"runtime environment of the job: JSON, YAML, or @FILE with either; it "+
			"slows the start of actors")
	f.BoolVar(&r.Nsight, "ray-workers-use-nsight", false, "run the actors under Nsight Systems")
	f.StringVar(&r.PlacementGroup, "ray-placement-group", "",
		"id or name of a placement group to adopt; it is not removed at the end")
	f.StringVar(&r.BundleIndices, "bundle-indices", "",
		"bundles of the placement group in the order of ranks, such as 2,3")
	Alias(f, "bundle-indices", "VLLM_RAY_BUNDLE_INDICES")
	f.IntVar(&r.SkipBundle, "ray-skip-bundle", r.SkipBundle,
		"bundle of an adopted placement group that is not to be used: that of the "+
			"actor this program runs in")
	f.StringVar(&r.DeviceKey, "ray-device-key", r.DeviceKey,
		"resource each rank takes: CPU (GPU with --device cuda), or a custom one")
	f.Float64Var(&r.PerWorker, "ray-devices-per-worker", r.PerWorker,
		"how much of it a rank takes; a fraction lets several share a device")
	Alias(f, "ray-devices-per-worker", "VLLM_RAY_PER_WORKER_GPUS")
	f.Var(&seconds{&r.PlacementTimeout}, "ray-placement-timeout",
		"how long to wait for the cluster to have room, also for nodes that have yet to join "+
			"(default: 30m for resources in use, not at all for what no node has)")
	f.BoolVar(&r.StrictEnv, "strict-env", false,
		"refuse nodes on which environment variables differ from the driver's")
	f.StringSliceVar(&r.EnvAllow, "ray-env-allow", nil,
		"names of environment variables sent to nodes although they look like secrets")
	f.StringVar(&r.NodeIP, "node-ip", "",
		"this machine's address on the network of the workers (default: the one Ray knows)")
	Alias(f, "node-ip", "VLLM_HOST_IP")
	Choices(f, "ray-device-key", "CPU", "GPU")
	Paths(f, PathFile, "ray-python")
}

// ServerFlags defines the flags of the HTTP surface.
func (c *Config) ServerFlags(f *pflag.FlagSet) {
	s := &c.Server
	f.StringVar(&s.Host, "host", s.Host, "address to listen on")
	f.IntVar(&s.Port, "port", s.Port, "port to listen on; 0 is any free one")
	f.BoolVar(&c.Parallel.Nodes.Headless, "headless", false,
		"run the ranks of a node of --nnodes other than node 0, without the API")
	f.StringArrayVar(&s.APIKeys, "api-key", nil,
		"key clients must send as a bearer token; may be given several times (or VLLM_API_KEY)")
	Words(f, "api-key")
	Alias(f, "api-key", "VLLM_API_KEY")
	f.Var(&keyFile{&s.APIKeys}, "api-key-file",
		"file with such keys, one a line; # begins a comment")
	f.Var(&list{value: &s.AllowedOrigins}, "allowed-origins",
		"origins browsers may call from (CORS): a,b or [\"a\",\"b\"]; * is any")
	f.Var(&list{value: &s.AllowedMethods}, "allowed-methods", "methods allowed to those origins")
	f.Var(&list{value: &s.AllowedHeaders}, "allowed-headers", "headers allowed to those origins")
	f.BoolVar(&s.AllowCredentials, "allow-credentials", false, "let those origins send credentials")
	f.StringSliceVar(&s.AllowedHosts, "allowed-hosts", nil,
		"names accepted in the Host header when bound to loopback")
	f.StringVar(&s.RootPath, "root-path", "", "path prefix under which a proxy serves this server")
	f.BoolVar(&s.EnableRequestIDHeaders, "enable-request-id-headers", false,
		"answer with an X-Request-Id header")
	f.BoolVar(&s.EnableRLHF, "enable-rlhf", false,
		"answer the routes of a trainer: pauses, sleep, updates of the weights")
	f.BoolVar(&s.EnableElasticEP, "enable-elastic-ep", false,
		"answer /scale_elastic and vLLM's /scale_elastic_ep, as a server with --api-key does")
	f.StringSliceVar(&s.AllowedLocalWeights, "allowed-local-weights", nil,
		"folders, beside the model's own, below which /update_weights may name files")
	f.BoolVar(&s.DisableAccessLog, "disable-uvicorn-access-log", false, "do not log each request")
	f.BoolVar(&s.DisableDocs, "disable-fastapi-docs", false,
		"do not answer /openapi.json and /docs")
	f.BoolVar(&s.DisableLogStats, "disable-log-stats", false,
		"do not log figures every ten seconds")
	f.StringVar(&s.LogFormat, "log-format", s.LogFormat,
		"lines for people (text), key=value (logfmt) or json; auto is text on a terminal, else "+
			"logfmt")
	f.Var(&size{value: &s.MaxRequestBodyBytes}, "max-request-body-bytes",
		"largest request body, such as 32M")
	f.IntVar(&s.MaxConnections, "max-connections", 0,
		"connections open at once; 0 is as many as the limit of open files leaves")
	f.IntVar(&s.MaxRequestsPerKey, "max-requests-per-key", 0,
		"requests of one API key, or of one address without keys, that are answered at the same "+
			"time; 0 is no limit")
	f.StringVar(&s.StoreDir, "store-dir", "",
		"folder for what is to outlive the server: files, batches, stored responses")
	f.StringSliceVar(&s.MetricsPrefixes, "metrics-prefix", s.MetricsPrefixes,
		"what names of metrics begin with: vllm for dashboards and routers made for vLLM, or "+
			"eagleray,vllm for both")
	f.IntVar(&s.ShutdownTimeoutSeconds, "shutdown-timeout", s.ShutdownTimeoutSeconds,
		"seconds SIGTERM gives requests to finish (--drain-timeout is the same)")
	Choices(f, "log-format", logging.Formats...)
	Choices(f, "metrics-prefix", "vllm", "eagleray", "eagleray,vllm")
	Paths(f, PathFile, "api-key-file")
	Paths(f, PathFolder, "store-dir", "allowed-local-weights")
	c.AnswerFlags(f)
	c.transportFlags(f)
	c.observeFlags(f)
	markGroup(f, frontend)
}
