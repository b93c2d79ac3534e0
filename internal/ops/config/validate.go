package config

import (
	"encoding/json"
	"net"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/ops/logging"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// quantizations are the names of ways to quantise weights as they are loaded, and vLLM's of those
// in which they may be stored.
var quantizations = []string{"int8", "int8_per_channel_weight_only", "int4", "int4_g32",
	"int4_g64", "int4_g128", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors",
	"fbgemm_fp8", "fp8", "gguf", "gptq", "gptq_marlin", "mxfp4"}

// The values of flags that are words.
var (
	loadFormats = []string{"auto", "safetensors", "dummy"}
	cacheDTypes = []string{"auto", "bfloat16", "float16", "fp8", "fp8_e4m3",
		"fp8_per_token_head", "int8", "int8_per_token_head"}
	dtypes          = []string{"auto", "bfloat16", "float16", "half", "float32", "float"}
	runners         = []string{"auto", "generate", "pooling"}
	policies        = []string{"fcfs", "priority"}
	backends        = []string{"uni", "mp", "ray"}
	transports      = []string{"auto", "link"}
	instructionSets = []string{"portable", "avx2", "avx512", "avx512bf16", "amx"}
	failures        = []string{"restart", "shrink", "exit"}
	logprobsModes   = []string{RawLogprobs, ProcessedLogprobs, RawLogits, ProcessedLogits}
	modelChanges    = []string{"keep", "refuse", "adopt"}
)

// Validate refuses values no model could be served with; each error names its flag.
func (c *Config) Validate() error {
	oneOf := func(flag, value string, allowed []string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return usage("--%s %q is not one of %s", flag, value, strings.Join(allowed, ", "))
	}
	noneOr := func(flag, value string, allowed []string) error {
		if value == "" {
			return nil
		}
		return oneOf(flag, value, allowed)
	}
	atLeast := func(flag string, value, least int) error {
		if value < least {
			return usage("--%s %d is less than %d", flag, value, least)
		}
		return nil
	}
	if slices.Contains(none, c.Model.Quantization) {
		c.Model.Quantization = ""
	}
	switch c.Model.Quantization { // engines of equal names hand blocks over
	case "int8":
		c.Model.Quantization = "int8_per_channel_weight_only"
	case "int4_g32":
		c.Model.Quantization = "int4"
	}
	switch c.Cache.DType {
	case "fp8":
		c.Cache.DType = "fp8_e4m3"
	case "int8_per_token_head":
		c.Cache.DType = "int8"
	}
	switch c.Model.LoadFormat { // faster readers of the same files
	case "runai_streamer", "fastsafetensors":
		c.Model.LoadFormat = "safetensors"
	}
	s, p, k := &c.Schedule, &c.Parallel, &c.Cache
	for _, err := range []error{
		oneOf("load-format", c.Model.LoadFormat, loadFormats),
		noneOr("quantization", c.Model.Quantization, quantizations),
		oneOf("dtype", c.Model.DType, dtypes),
		oneOf("kv-cache-dtype", c.Cache.DType, cacheDTypes),
		noneOr("runner", c.Model.Runner, runners),
		oneOf("scheduling-policy", s.Policy, policies),
		noneOr("distributed-executor-backend", p.Backend, backends),
		oneOf("queue-transport", c.Queue.Transport, transports),
		oneOf("device", p.Device, devices),
		noneOr("cpu-isa", p.CPUISA, instructionSets),
		oneOf("log-format", c.Server.LogFormat, logging.Formats),
		checkParsers(&c.Model),
		atLeast("max-num-seqs", s.MaxNumSeqs, 1),
		atLeast("max-num-batched-tokens", s.MaxNumBatchedTokens, 1),
		atLeast("tensor-parallel-size", p.TensorParallelSize, 1),
		atLeast("pipeline-parallel-size", p.PipelineParallelSize, 1),
		atLeast("prefill-context-parallel-size", p.PrefillContextParallelSize, 1),
		atLeast("data-parallel-size", p.DataParallelSize, 1),
		atLeast("nnodes", p.Nodes.Count, 1),
		atLeast("cpu-threads", p.CPUThreads, 0),
		atLeast("num-gpu-blocks-override", k.Blocks, 0),
		atLeast("long-prefill-token-threshold", s.LongPrefillTokenThreshold, 0),
		atLeast("max-num-queued-reqs", s.MaxNumQueuedReqs, 0),
		oneOf("logprobs-mode", c.Model.LogprobsMode, logprobsModes),
		atLeast("max-logprobs", c.Model.MaxLogprobs, -1),
		atLeast("stream-interval", c.Server.Answers.StreamInterval, 1),
		atLeast("max-requests-per-key", c.Server.MaxRequestsPerKey, 0),
		atLeast("max-connections", c.Server.MaxConnections, 0),
		oneOf("on-failure", c.Recovery.OnFailure, failures),
		oneOf("on-model-change", c.Recovery.OnModelChange, modelChanges),
		atLeast("max-restarts", c.Recovery.MaxRestarts, 0),
		atLeast("shutdown-timeout", c.Server.ShutdownTimeoutSeconds, 0),
	} {
		if err != nil {
			return err
		}
	}
	if err := c.Recovery.validate(); err != nil {
		return err
	}
	if k.BlockSize < 16 || k.BlockSize%16 != 0 {
		return usage("--block-size %d is not a multiple of 16", k.BlockSize)
	}
	if err := c.validateOffloading(); err != nil {
		return err
	}
	if u := k.MemoryUtilization; !(u >= 0 && u <= 1) {
		return usage("--gpu-memory-utilization %v is not a part, of 0 to 1", u)
	}
	if c.Server.Port < 0 || c.Server.Port > 65535 {
		return usage("--port %d is not a port", c.Server.Port)
	}
	if slices.Contains(c.Server.APIKeys, "") {
		return usage("--api-key is empty")
	}
	for _, key := range c.Server.APIKeys {
		// Headers come without white space at their ends, and never have a control character.
		if strings.TrimSpace(key) != key || strings.ContainsFunc(key, unicode.IsControl) {
			return usage("--api-key has a key that begins or ends with white space, or has a " +
				"control character in it: no request would match it")
		}
	}
	if s := &c.Server; s.EnableElasticEP && len(s.APIKeys) == 0 && s.Transport.UDS == "" &&
		!loopback(s.Host) {
		return usage("--enable-elastic-ep at --host %q without --api-key: whoever reaches it "+
			"could take engines away", s.Host)
	}
	if s := &c.Server; s.EnableRLHF && len(s.APIKeys) == 0 && s.Transport.UDS == "" &&
		!loopback(s.Host) {
		return usage("--enable-rlhf at --host %q without --api-key: whoever reaches it could "+
			"change the weights", s.Host)
	}
	for _, p := range c.Server.MetricsPrefixes {
		if strings.Trim(strings.ToLower(p), "abcdefghijklmnopqrstuvwxyz_") != "" || p == "" {
			return usage("--metrics-prefix %q is not a word of letters", p)
		}
	}
	if s := &c.Server; len(s.AllowedLocalWeights) > 0 && !s.EnableRLHF && !c.LoRA.Enable {
		return usage("--allowed-local-weights without --enable-rlhf or --enable-lora: nothing " +
			"loads weights")
	}
	notFolder := func(dir string) bool { return !isFolder(dir) }
	if i := slices.IndexFunc(c.Server.AllowedLocalWeights, notFolder); i >= 0 {
		return usage("--allowed-local-weights %q is not a folder", c.Server.AllowedLocalWeights[i])
	}
	var object map[string]any
	if o := c.Model.OverrideGenerationConfig; o != "" && json.Unmarshal([]byte(o), &object) != nil {
		return usage("--override-generation-config %q is not a JSON object", o)
	}
	if s.MaxNumBatchedTokens < s.MaxNumSeqs {
		return usage("--max-num-batched-tokens %d is less than --max-num-seqs %d",
			s.MaxNumBatchedTokens, s.MaxNumSeqs)
	}
	for _, check := range []func() error{p.checkBalanced, p.checkBind, c.checkDevice,
		c.checkExperts, c.validateLoRA, c.checkShrink} {
		if err := check(); err != nil {
			return err
		}
	}
	if s := p.PipelineLayerSplit; len(s) > 0 && len(s) != p.PipelineParallelSize {
		return usage("--pipeline-layer-split %s has %d stages, --pipeline-parallel-size is %d",
			Commas(s), len(s), p.PipelineParallelSize)
	}
	if err := c.Server.Transport.check(); err != nil {
		return err
	}
	if err := c.validateNodes(); err != nil {
		return err
	}
	if c.Transfer.Role != "" && c.Model.Runner == "pooling" {
		return usage("--kv-transfer-config with --runner pooling: nothing is decoded")
	}
	if c.Speculative.Method != "" && c.Model.Runner == "pooling" {
		return usage("--speculative-config with --runner pooling: nothing is decoded")
	}
	if n, own := p.DataParallelSizeLocal, p.localReplicas(); n != 0 && n != own &&
		!p.Balanced.Any() {
		return usage("--data-parallel-size-local %d is not %d: each of --nnodes %d has an equal "+
			"part of --data-parallel-size %d", n, own, p.Nodes.Count, p.DataParallelSize)
	}
	if r := &p.Ray; p.Engines() > 1 && (r.PlacementGroup == "") != (r.BundleIndices == "") {
		return usage("--data-parallel-size %d: --ray-placement-group and --bundle-indices, which "+
			"lists the bundles engine by engine, are given together or not at all",
			p.DataParallelSize)
	}
	if r := &p.Ray; r.DeviceKey == "CPU" && r.PerWorker != 1 {
		return usage("--ray-devices-per-worker %v with --ray-device-key CPU: --cpu-threads sets "+
			"the CPUs of a rank", r.PerWorker)
	}
	if r := &p.Ray; r.DeviceKey == "" || !(r.PerWorker > 0) || r.PerWorker > 1 {
		return usage("--ray-devices-per-worker %v of --ray-device-key %q: a rank takes one "+
			"device or a part of one", r.PerWorker, r.DeviceKey)
	}
	return nil
}

// checkExperts refuses what cannot be together with --enable-expert-parallel.
func (c *Config) checkExperts() error {
	p := &c.Parallel
	switch {
	case !p.ExpertParallel && (p.EPLB.Enabled || p.EPLB.Redundant != 0):
		return usage("--enable-eplb and --num-redundant-experts need --enable-expert-parallel: " +
			"else ranks hold a share of each expert")
	case !p.ExpertParallel:
		return nil
	case p.EPLB.Redundant < 0:
		return usage("--num-redundant-experts %d: must not be negative", p.EPLB.Redundant)
	}
	return nil
}

// checkShrink refuses --on-failure shrink where no place can be lost, or no layout is smaller.
func (c *Config) checkShrink() error {
	p := &c.Parallel
	switch r := &p.Ray; {
	case c.Recovery.OnFailure != "shrink":
		return nil
	case p.Backend != "ray" && p.Nodes.Count == 1:
		return usage("--on-failure shrink without --distributed-executor-backend ray or " +
			"--nnodes: only there may ranks lack a place")
	case r.PlacementGroup != "":
		return usage("--on-failure shrink with --ray-placement-group %s: ranks keep to the "+
			"bundles of that group", r.PlacementGroup)
	case r.BundleIndices != "":
		return usage("--on-failure shrink with --bundle-indices %s: they are those of all ranks",
			r.BundleIndices)
	case p.TensorParallelSize == 1 && !(p.ExpertParallel && p.DataParallelSize > 1):
		return usage("--on-failure shrink with --tensor-parallel-size 1: no layout is smaller " +
			"(--data-parallel-size counts with --enable-expert-parallel)")
	case c.Transfer.Port != 0 && p.Engines() > 1:
		return usage("--on-failure shrink with kv_port %d of --kv-transfer-config and "+
			"--data-parallel-size %d: engines of other sizes would take each other's ports",
			c.Transfer.Port, p.DataParallelSize)
	}
	return nil
}

// checkBind refuses a list of processors that this machine's ranks cannot be bound to.
func (p *Parallel) checkBind() error {
	sets, err := machine.ParseBind(p.CPUBind)
	if err == nil && sets == nil {
		return nil
	}
	if p.Backend == "ray" {
		return usage("--cpu-bind %q with --distributed-executor-backend ray: Ray places the "+
			"ranks, which machine has which is not known", p.CPUBind)
	}
	if err == nil {
		_, err = machine.ReadTopology().Plan(p.Demand())
	}
	if err != nil {
		return usage("--cpu-bind %q: %w", p.CPUBind, err)
	}
	return nil
}

// Demand is what the ranks of this machine want of its processors, if it is not Ray that places
// them.
func (p *Parallel) Demand() machine.Demand {
	ranks := p.Layout().World() * p.Engines() / max(1, p.Nodes.Count)
	return machine.Demand{Ranks: max(1, ranks), Threads: p.CPUThreads, Bind: p.CPUBind}
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// loopback says that a host is this machine alone.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// validate refuses what contradicts itself.
func (r *Recovery) validate() error {
	normal := Default().Recovery
	switch {
	case r.OnFailure == "exit" && r.MaxRestarts != normal.MaxRestarts:
		return usage("--max-restarts %d with --on-failure exit: nothing is restarted",
			r.MaxRestarts)
	case r.OnFailure == "exit" && r.OnModelChange == "adopt":
		return usage(
			"--on-model-change adopt with --on-failure exit: workers are not started again")
	case r.OnFailure == "exit" && r.Window != normal.Window:
		return usage("--restart-window %v with --on-failure exit: nothing is restarted", r.Window)
	}
	return nil
}
