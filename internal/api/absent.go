package api

import (
	"strings"

	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/ops/compat"
)

// family are routes of other servers that there are not here, for one reason.
type family struct {
	// paths are whole ones, or have one * for any text; a family /a/* has /a itself.
	paths []string
	// what this server does not have, and what there is for it.
	what, see string
	// vllm says that vLLM has the routes.
	vllm bool
}

const textOnly = "it reads and writes text: see /v1/chat/completions, /v1/responses, /v1/messages"

// absent are the families that clients know: OpenAI's, Anthropic's, vLLM's, Ollama's. Of several
// that a path is of the first counts.
var absent = []family{
	{[]string{"/v1/audio/*"}, "speech and transcriptions", textOnly, true},
	{[]string{"/v1/realtime"}, "realtime sessions",
		"answers are streamed by /v1/chat/completions and /v1/responses", true},
	{[]string{"/v1/realtime/*"}, "realtime sessions",
		"answers are streamed by /v1/chat/completions and /v1/responses", false},
	{[]string{"/v1/images/*"}, "images", textOnly, false},
	{[]string{"/v1/videos/*"}, "videos", textOnly, false},
	{[]string{"/v1/moderations"}, "moderations", "a classifier answers at /classify", false},
	{[]string{"/v1/vector_stores/*"}, "vector stores",
		"/v1/embeddings makes vectors for a store of your own", false},
	{[]string{"/v1/fine_tuning/*"}, "fine-tuning",
		"a trainer gives it other weights: see --enable-rlhf", false},
	{[]string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}, "adapters",
		"start it with --enable-lora", false},
	{[]string{responses.CompactPath}, "compaction of conversations",
		"`truncation` of auto drops what is too old for the model", false},
	{[]string{"/v1/assistants/*", "/v1/threads/*"}, "assistants and threads",
		"/v1/responses goes on from earlier answers", false},
	{[]string{"/v1/completions/render", "/v1/completions/derender",
		"/v1/chat/completions/render", "/v1/chat/completions/derender",
		"/v1/messages/render", "/v1/responses/render"},
		"rendering apart from answers", "see /tokenize and /detokenize", true},
	{[]string{"/v1/chat/completions/*"}, "stored chat completions",
		"/v1/responses stores answers", false},
	{[]string{"/v1/uploads/*"}, "uploads in parts", "/v1/files takes whole files", false},
	{[]string{"/v1/evals/*"}, "evaluations", textOnly, false},
	{[]string{"/v1/containers/*", "/v1/skills/*"}, "tools of its own",
		"clients run the tools that they name in their requests", false},
	{[]string{"/v1/organization/*", "/v1/organizations/*"}, "organizations",
		"its keys are those of --api-key", false},
	{[]string{"/v1/complete"}, "Anthropic's text completions", "see /v1/messages", false},
	{[]string{"/v1/engines/*"}, "engines to choose from", "see /v1/models", false},
	{[]string{"/api/*"}, "routes of Ollama's own",
		"it has OpenAI's, as Ollama has: see /v1/chat/completions", false},
	{[]string{"/cohere/*"}, "chat as Cohere has it", "see /v1/chat/completions", true},
	{[]string{"/v1/chat", "/v2/chat"}, "chat as Cohere has it", "see /v1/chat/completions", false},
	{[]string{"/v1/decisions", "/v1/systemone"}, "decisions",
		"`structured_outputs` of /v1/chat/completions has an answer be one of several", true},
	{[]string{"/generative_scoring"}, "scores by generation", "see /score", true},
	{[]string{"/invocations"}, "SageMaker's route", "see /v1/chat/completions", true},
	{[]string{"/fault_tolerance/*"}, "routes for faults", "see /health and /debug/ranks", true},
	{[]string{"/start_profile", "/stop_profile"}, "profiles of steps", "see /metrics", true},
	{[]string{"/server_info"}, "a list of its flags", "see /version and /metrics", true},
	{[]string{"/reset_mm_cache", "/reset_encoder_cache"}, "a cache of pictures", textOnly, true},
	{[]string{"/release_kv_cache_memory"}, "memory to give back", "see /sleep", true},
	{[]string{"/shutdown_weight_transfer_engine"}, "a connection to close",
		"it ends with the trainer: see /init_weight_transfer_engine", true},
	{[]string{"/kv_event_sources"}, "events of KV blocks", "see /metrics", true},
	{[]string{"/start_draft_weight_update"}, "a draft model", "see /start_weight_update", true},
	{[]string{"/weight_checker"}, "a check of weights", "see /weight_info", true},
	{[]string{"/redoc"}, "Redoc", "see /docs", true},
}

// absentRoute says of a path that is no route's what there is instead, "" for nothing.
func absentRoute(path string) string {
	for _, f := range absent {
		for _, p := range f.paths {
			if within(path, p) {
				return "this server has no " + f.what + ": " + f.see
			}
		}
	}
	return ""
}

// within says that a path is one of a pattern's.
func within(path, pattern string) bool {
	head, tail, open := strings.Cut(pattern, "*")
	if !open {
		return path == pattern
	}
	return path+"/" == head && tail == "" || len(path) >= len(head)+len(tail) &&
		strings.HasPrefix(path, head) && strings.HasSuffix(path, tail)
}

// unanswered are vLLM's routes that there are not.
func unanswered() (list []compat.Entry) {
	for _, f := range absent {
		for _, p := range f.paths {
			if f.vllm {
				list = append(list, compat.Entry{Name: p, Status: compat.Refused, Note: f.see})
			}
		}
	}
	return list
}
