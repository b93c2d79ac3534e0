package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/compat"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Compat says of each flag of f how it stands to vLLM's, in alphabetical order. A flag that is in
// no table works as in vLLM.
func Compat(f *pflag.FlagSet) []compat.Entry {
	var list []compat.Entry
	names := map[string]string{"reasoning-parser": strings.Join(output.ThinkingNames(), ", "),
		"tool-call-parser": strings.Join(output.FormatNames(), ", ")}
	f.VisitAll(func(x *pflag.Flag) {
		known, isKnown := x.Value.(*knownValue)
		e := compat.Entry{Name: "--" + x.Name, Status: compat.Same}
		switch note, found := flagNotes[x.Name]; {
		case isKnown:
			e.Status, e.Note = known.compat()
		case found:
			e.Status, e.Note = note.status, note.text+names[x.Name]
		}
		if names := foreignNames(x); names != "" {
			e.Note = strings.TrimPrefix(e.Note+"; also "+names, "; ")
		}
		list = append(list, e)
	})
	compat.Sort(list)
	return list
}

// foreignNames are a flag's other names, without its variable of this program's.
func foreignNames(x *pflag.Flag) string {
	names := slices.DeleteFunc(Names(x), func(n string) bool { return strings.HasPrefix(n, Env) })
	return strings.Join(names, ", ")
}

// compat is how a flag that does nothing stands to vLLM's.
func (k Known) compat() (compat.Status, string) {
	switch {
	case slices.Contains(k.Allowed, AnyValue), k.Switch && k.Allowed != nil:
		return compat.NoEffect, k.Why
	case k.Switch:
		return compat.Refused, k.Why
	}
	allowed := slices.DeleteFunc(slices.Clone(k.Allowed), func(v string) bool {
		return v == "" || v == "None" || v == "null"
	})
	return compat.Refused, "but for " + strings.Join(allowed, ", ") + ": " + k.Why
}

// note is what flagNotes says of a flag.
type note struct {
	status compat.Status
	text   string
}

const same, differs, ours = compat.Same, compat.Differs, compat.Ours

// flagNotes are the flags of serve that are not vLLM's, or differ from it, and what else is worth a
// line.
var flagNotes = map[string]note{
	// The model.
	"model":               {same, "or the argument, which wins; without either the built-in model"},
	"served-model-name":   {same, "several words, a,b, or the flag twice; the first is in metrics"},
	"tokenizer":           {same, "folder or Hub repo with a tokenizer"},
	"skip-tokenizer-init": {same, "token ids only: chat, stop and bad_words are refused"},
	"revision":            {same, "of the model and of --tokenizer"},
	"load-format": {differs, "auto, safetensors, dummy; runai_streamer and fastsafetensors " +
		"are safetensors; others are refused"},
	"weights-cache": {ours, "packed weights of earlier starts; a folder of the file system that " +
		"holds the model's size once more"},
	"quantization": {differs, "int8_per_channel_weight_only, int8, int4, int4_g64, int4_g128 as " +
		"weights are loaded; the checkpoint's own method changes nothing; others are refused"},
	"dtype": {same, "auto runs float32 checkpoints in bfloat16"},
	"max-model-len": {differs, "more than the model's positions is refused, whatever " +
		"VLLM_ALLOW_LONG_MAX_MODEL_LEN says"},
	"seed": {differs, "seeds dummy weights, and requests without a seed, which else draw one each"},
	"runner": {same, "generate, or pooling for embeddings and scores; classifiers pool in any " +
		"case"},
	"pooler-config": {differs, "pooling_type LAST or MEAN; normalize or use_activation"},
	"hf-overrides": {differs, "rope_scaling, rope_theta, rope_parameters and the numbers of " +
		"positions; of models that pool is_matryoshka, matryoshka_dimensions, " +
		"classifier_from_token, is_original_qwen3_reranker; others are refused"},
	"reasoning-parser":        {differs, "auto, the default, reads the chat template; none; or "},
	"tool-call-parser":        {differs, "auto, the default, reads the chat template; none; or "},
	"enable-auto-tool-choice": {differs, "on by default"},
	"structured-outputs-config": {differs, "disable_any_whitespace; there is one back end, which " +
		"never falls back"},
	"speculative-config": {differs, "methods ngram, suffix, draft_model, mtp and eagle3; results " +
		"are those without it, to the bits"},
	// Adapters.
	"lora-modules":  {same, "name=folder, or an object; PEFT's folders with safetensors"},
	"max-loras":     {differs, "any number by default"},
	"max-lora-rank": {differs, "any number, 16 by default"},
	"max-cpu-loras": {differs, "any number by default; one more is refused, or takes the place " +
		"of one that --lora-resolver found"},
	"lora-resolver": {ours, "in the place of VLLM_LORA_RESOLVER_CACHE_DIR; hub for repos"},
	// Memory and cache.
	"kv-cache-memory-bytes": {same, "of each rank; by default up to 4 GiB among the ranks of a " +
		"machine"},
	"gpu-memory-utilization": {differs, "of the limit of the container or machine; by default " +
		"0.9, with caches of up to 4 GiB; memory in use makes caches smaller"},
	"block-size": {differs, "multiples of 16; 16 by default"},
	"kv-offloading-size": {differs, "files in a folder of each machine, which they may have " +
		"together; they outlive the server"},
	"kv-offloading-backend": {differs, "native only"},
	"kv-offloading-dir":     {ours, "a folder in memory (/dev/shm) by default"},
	"kv-transfer-config": {differs, "EagleRayConnector, for which NixlConnector is taken; vLLM's " +
		"roles"},
	// Ranks.
	"tensor-parallel-size": {differs, "1, 2, 4 or 8, and the heads must divide"},
	"pipeline-parallel-size": {same,
		"stages of equal bytes of weights, vLLM's of equal layers"},
	"pipeline-layer-split":          {ours, "layers of each stage, such as 12,12"},
	"prefill-context-parallel-size": {same, "chunks of 32 tokens a rank or more are divided"},
	"data-parallel-size": {same, "engines behind one API; a request stays on one of them with " +
		"all its choices, or each choice on one with --enable-expert-parallel"},
	"enable-expert-parallel": {same, "with -dp all engines are one group, and no node waits for " +
		"another beside the exchange of rows"},
	"data-parallel-size-local": {differs, "an equal part of --data-parallel-size only, or with " +
		"--data-parallel-hybrid-lb as many as this server has"},
	"data-parallel-external-lb": {differs, "not for engines that share experts: one driver plans " +
		"the steps of all"},
	"data-parallel-hybrid-lb": {differs, "not for engines that share experts: one driver plans " +
		"the steps of all"},
	"data-parallel-rank":       {same, "the label engine of metrics; servers do not meet"},
	"data-parallel-start-rank": {same, "the label engine of metrics; servers do not meet"},
	"distributed-executor-backend": {differs, "uni, mp, ray; external_launcher and class names " +
		"are refused"},
	"cpu-threads": {ours, "cores of each rank"},
	"cpu-bind": {ours, "auto, none, or a set of processors for each rank; in the place of " +
		"VLLM_CPU_OMP_THREADS_BIND"},
	"cpu-isa":                       {ours, "portable, avx2, avx512, avx512bf16 or amx"},
	"nnodes":                        {same, "mp only; needs --cluster-token-file"},
	"master-addr":                   {differs, "no default"},
	"cluster-token-file":            {ours, "secret of all nodes, 16 characters or more"},
	"distributed-timeout-seconds":   {differs, "how long nodes wait for each other at the start"},
	"queue-transport":               {ours, "auto, or link (TCP with all ranks)"},
	"queue-memory":                  {ours, "in the place of VLLM_MQ_MAX_CHUNK_BYTES_MB"},
	"queue-port-range":              {ours, "ports for workers of other hosts"},
	"stall-warning":                 {ours, "in the place of VLLM_RINGBUFFER_WARNING_INTERVAL"},
	"execute-model-timeout-seconds": {ours, "how long no worker may move in a step"},
	// Ray: in vLLM variables and the Python API.
	"ray-address": {ours, "chooses --distributed-executor-backend ray, as the variable " +
		"does not"},
	"ray-namespace":          {ours, "vLLM's is anonymous"},
	"ray-python":             {ours, "Python with Ray 2.35.0 or newer; vLLM runs in it"},
	"ray-placement-group":    {ours, "id or name; vLLM takes the group of the actor around it"},
	"bundle-indices":         {ours, "bundles in the order of ranks"},
	"ray-skip-bundle":        {ours, "bundle of the actor that this program runs in"},
	"ray-device-key":         {ours, "CPU, GPU or a custom resource; vLLM's is the platform's"},
	"ray-devices-per-worker": {ours, "a fraction lets ranks share a device"},
	"ray-placement-timeout":  {ours, "vLLM waits 1800 s; here what no node has is refused at once"},
	"ray-runtime-env":        {ours, "for the whole job, as ray_runtime_env in Python"},
	"strict-env":             {ours, "differing variables of nodes end the start"},
	"ray-env-allow": {ours, "of what looks like a secret only HF_TOKEN goes to nodes by " +
		"itself"}, "node-ip": {ours, "this machine's address for workers"},
	"on-failure":      {ours, "restart (the default), shrink or exit; vLLM ends"},
	"max-restarts":    {ours, "restarts within --restart-window"},
	"restart-window":  {ours, "time in which --max-restarts are allowed"},
	"on-model-change": {ours, "keep, refuse or adopt files that changed since the start"},
	// The scheduler.
	"max-num-seqs":           {differs, "256 by default, whatever the device"},
	"max-num-batched-tokens": {differs, "2048 by default, at least --max-num-seqs"},
	"enable-chunked-prefill": {same, "off, the budget grows to hold a whole prompt"},
	"scheduling-policy":      {differs, "fcfs or priority; under both, clients take turns"},
	"max-num-queued-reqs": {differs, "counts sequences (n times prompts), 8192 by default; 503 " +
		"beyond " +
		"it"},
	"async-scheduling": {same, "off, tokens are the same"},
	// The server.
	"host": {differs, "127.0.0.1 by default"},
	"port": {same, "0 is any free one"},
	"api-key": {differs, "guards every route but /health, /readyz, /livez, /ping, /version, " +
		"/docs, /openapi.json and the page's files"}, "api-key-file": {ours, "keys, one a line"},
	"allowed-origins": {differs, "none by default but pages of this machine; vLLM's is *"},
	"allowed-hosts": {ours, "names accepted in Host; bound to loopback only those of this " +
		"machine"}, "allowed-local-weights": {ours, "folders of " +
		"/update_weights, beside the model's, and of /v1/load_lora_adapter"},
	"enable-rlhf":       {ours, "in the place of VLLM_SERVER_DEV_MODE"},
	"enable-elastic-ep": {differs, "engines are added and removed; experts are not moved"},
	"log-format":        {ours, "text, logfmt or json"},
	"enable-per-request-metrics": {same, "one request alone: return_metrics; " +
		"rates of prefill and decode, too"},
	"enable-log-requests":    {differs, "lengths, parameters and times, never texts"},
	"max-request-body-bytes": {ours, "in the place of VLLM_HTTP_MAX_REQUEST_BODY_SIZE; 32M"},
	"max-connections":        {ours, "by default what the limit of open files leaves"},
	"max-requests-per-key":   {ours, "429 beyond it"},
	"store-dir":              {ours, "for files, batches and stored responses"},
	"metrics-prefix":         {ours, "vllm, or eagleray,vllm for both"},
	"shutdown-timeout":       {differs, "30 by default; a second signal ends at once"},
	"otlp-traces-endpoint":   {differs, "OTLP over HTTP in JSON (port 4318); grpc:// is refused"},
	"ssl-keyfile":            {same, "read again when it changes, without --enable-ssl-refresh"},
	"ssl-certfile":           {same, "read again when it changes, without --enable-ssl-refresh"},
	"uds":                    {same, "/dev/fd/N is a socket that is inherited"},
	"check":                  {ours, "find mistakes without a start"},
	"config":                 {same, "YAML; a key that is no flag is refused"},
}
