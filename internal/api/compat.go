package api

import (
	"net/http"
	"slices"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/openapi"
	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/ops/compat"
)

// Compat says of each route how it stands to vLLM's.
func Compat() []compat.Entry { return slices.Concat(answered, unanswered()) }

const (
	get    = http.MethodGet + " "
	post   = http.MethodPost + " "
	remove = http.MethodDelete + " "

	withRLHF     = "with --enable-rlhf"
	withSleep    = "with --enable-sleep-mode or --enable-rlhf"
	withAdapters = "with --enable-lora and --api-key"
	withElastic  = "with --enable-elastic-ep or --api-key"
	withStore    = "OpenAI's; with --store-dir"
	withKept     = "OpenAI's; with --store-dir they outlive the server"
	withMessages = "Anthropic's; with --store-dir"
	withPooling  = "of models that pool (--runner pooling, classifiers)"
)

// answered are the routes of a server with every flag that adds some.
var answered = []compat.Entry{
	{Name: post + openai.CompletionPath, Status: compat.Same},
	{Name: post + openai.ChatPath, Status: compat.Same, Note: "text only"},
	{Name: post + openai.ChatBatchPath, Status: compat.Same, Note: "no stream, tools, n above 1"},
	{Name: post + openai.TokensPath, Status: compat.Differs, Note: "without features"},
	{Name: post + responses.ResponsesPath, Status: compat.Same, Note: "text and functions"},
	{Name: get + responses.ResponsesPath + "/{id}", Status: compat.Same,
		Note: "with --store-dir what is stored outlives the server"},
	{Name: remove + responses.ResponsesPath + "/{id}", Status: compat.Ours, Note: "OpenAI's"},
	{Name: post + responses.ResponsesPath + "/{id}/cancel", Status: compat.Same},
	{Name: get + responses.ResponsesPath + "/{id}/input_items", Status: compat.Ours,
		Note: "OpenAI's"},
	{Name: post + responses.InputTokensPath, Status: compat.Ours, Note: "OpenAI's"},
	{Name: post + responses.ConversationsPath, Status: compat.Ours, Note: withKept},
	{Name: get + responses.ConversationsPath + "/{id}", Status: compat.Ours, Note: withKept},
	{Name: post + responses.ConversationsPath + "/{id}", Status: compat.Ours, Note: withKept},
	{Name: remove + responses.ConversationsPath + "/{id}", Status: compat.Ours, Note: withKept},
	{Name: post + responses.ConversationsPath + "/{id}/items", Status: compat.Ours,
		Note: withKept},
	{Name: get + responses.ConversationsPath + "/{id}/items", Status: compat.Ours, Note: withKept},
	{Name: get + responses.ConversationsPath + "/{id}/items/{item}", Status: compat.Ours,
		Note: withKept},
	{Name: remove + responses.ConversationsPath + "/{id}/items/{item}", Status: compat.Ours,
		Note: withKept},
	{Name: post + anthropic.MessagesPath, Status: compat.Same,
		Note: "Anthropic's API; text and tools"},
	{Name: post + anthropic.CountTokensPath, Status: compat.Same},
	{Name: post + pooling.EmbeddingsPath, Status: compat.Same, Note: withPooling + "; float32"},
	{Name: post + pooling.CoherePath, Status: compat.Differs,
		Note: "texts; input_type is refused without such a prompt, but of searches"},
	{Name: post + pooling.CohereV1Path, Status: compat.Ours, Note: "Cohere's"},
	{Name: post + pooling.ClassifyPath, Status: compat.Same, Note: "of classifiers"},
	{Name: post + pooling.PoolingPath, Status: compat.Differs,
		Note: "task embed and token_embed, or classify and token_classify"},
	{Name: post + pooling.ScorePath, Status: compat.Same, Note: withPooling},
	{Name: post + "/score", Status: compat.Same, Note: withPooling},
	{Name: post + pooling.RerankPath, Status: compat.Same, Note: withPooling},
	{Name: post + "/rerank", Status: compat.Same, Note: withPooling},
	{Name: post + "/v2/rerank", Status: compat.Same, Note: withPooling},
	{Name: get + "/v1/models", Status: compat.Same,
		Note: "owned_by is eagleray; Anthropic's clients get its fields"},
	{Name: get + "/v1/models/{model...}", Status: compat.Ours, Note: "OpenAI's"},
	{Name: post + "/tokenize", Status: compat.Same},
	{Name: post + "/detokenize", Status: compat.Same},
	{Name: get + "/tokenizer_info", Status: compat.Same,
		Note: "with --enable-tokenizer-info-endpoint"},
	{Name: post + "/v1/files", Status: compat.Ours, Note: withStore},
	{Name: get + "/v1/files", Status: compat.Ours, Note: withStore},
	{Name: get + "/v1/files/{id}", Status: compat.Ours, Note: withStore},
	{Name: get + "/v1/files/{id}/content", Status: compat.Ours, Note: withStore},
	{Name: remove + "/v1/files/{id}", Status: compat.Ours, Note: withStore},
	{Name: post + "/v1/batches", Status: compat.Ours, Note: withStore},
	{Name: get + "/v1/batches", Status: compat.Ours, Note: withStore},
	{Name: get + "/v1/batches/{id}", Status: compat.Ours, Note: withStore},
	{Name: post + "/v1/batches/{id}/cancel", Status: compat.Ours, Note: withStore},
	{Name: post + anthropic.MessagesPath + "/batches", Status: compat.Ours, Note: withMessages},
	{Name: get + anthropic.MessagesPath + "/batches", Status: compat.Ours, Note: withMessages},
	{Name: get + anthropic.MessagesPath + "/batches/{id}", Status: compat.Ours,
		Note: withMessages},
	{Name: remove + anthropic.MessagesPath + "/batches/{id}", Status: compat.Ours,
		Note: withMessages},
	{Name: post + anthropic.MessagesPath + "/batches/{id}/cancel", Status: compat.Ours,
		Note: withMessages},
	{Name: get + anthropic.MessagesPath + "/batches/{id}/results", Status: compat.Ours,
		Note: withMessages},
	{Name: post + "/v1/load_lora_adapter", Status: compat.Differs, Note: withAdapters +
		"; folders below --allowed-local-weights or --lora-resolver"},
	{Name: post + "/v1/unload_lora_adapter", Status: compat.Differs, Note: withAdapters +
		"; answered once the adapter's requests are done"},
	{Name: post + "/scale_elastic", Status: compat.Ours, Note: withElastic + "; ?dp= or ?tp="},
	{Name: post + "/scale_elastic_ep", Status: compat.Differs,
		Note: withElastic + "; no request is refused meanwhile"},
	{Name: post + "/is_scaling_elastic_ep", Status: compat.Same, Note: withElastic},
	{Name: get + "/is_scaling_elastic_ep", Status: compat.Ours, Note: withElastic},
	{Name: post + "/sleep", Status: compat.Same,
		Note: withSleep + "; level 2 has its weights again on waking up"},
	{Name: post + "/wake_up", Status: compat.Same, Note: withSleep},
	{Name: get + "/is_sleeping", Status: compat.Same, Note: withSleep},
	{Name: post + "/pause", Status: compat.Same, Note: withRLHF},
	{Name: post + "/resume", Status: compat.Same, Note: withRLHF},
	{Name: get + "/is_paused", Status: compat.Same, Note: withRLHF},
	{Name: post + "/abort_requests", Status: compat.Same, Note: withRLHF},
	{Name: post + "/init_weight_transfer_engine", Status: compat.Same, Note: withRLHF},
	{Name: post + "/start_weight_update", Status: compat.Same, Note: withRLHF},
	{Name: post + "/update_weights", Status: compat.Differs,
		Note: withRLHF + "; files, a connection or shared memory, not NCCL"},
	{Name: post + "/finish_weight_update", Status: compat.Differs,
		Note: withRLHF + "; all ranks swap or none, a wrong order is a 409"},
	{Name: post + "/update_weight_version", Status: compat.Same, Note: withRLHF},
	{Name: get + "/weight_info", Status: compat.Same, Note: withRLHF},
	{Name: post + "/reset_prefix_cache", Status: compat.Same, Note: withRLHF},
	{Name: post + "/collective_rpc", Status: compat.Differs,
		Note: withRLHF + "; five methods, none of which changes anything"},
	{Name: get + "/get_world_size", Status: compat.Same, Note: withRLHF},
	{Name: get + "/load", Status: compat.Differs, Note: "always counts, needs the key"},
	{Name: get + "/metrics", Status: compat.Differs, Note: "needs the key; see --metrics-prefix"},
	{Name: get + "/health", Status: compat.Differs,
		Note: "503 with the cause while the engine recovers, stalls or drains; ?generate asks " +
			"for a token"},
	{Name: get + "/ping", Status: compat.Same, Note: "as /health"},
	{Name: post + "/ping", Status: compat.Same, Note: "as /health"},
	{Name: get + "/readyz", Status: compat.Ours, Note: "as /health"},
	{Name: get + "/livez", Status: compat.Ours, Note: "200 until the engine has failed for good"},
	{Name: get + "/version", Status: compat.Same},
	{Name: get + "/debug/ranks", Status: compat.Ours, Note: "state of the workers"},
	{Name: get + "/debug/experts", Status: compat.Ours, Note: "tokens of each expert, by layer"},
	{Name: get + openapi.DocumentPath, Status: compat.Same},
	{Name: get + openapi.PagePath, Status: compat.Differs,
		Note: "a page of its own, without scripts"},
	{Name: get + "/", Status: compat.Ours, Note: "the page for browsers"},
	{Name: get + dashboard.FilesPath, Status: compat.Ours, Note: "the page's files"},
	{Name: get + dashboard.AboutPath, Status: compat.Ours, Note: "what the page is of"},
	{Name: get + dashboard.LivePath, Status: compat.Ours, Note: "the page's feed"},
	{Name: post + dashboard.MeasurePath, Status: compat.Ours, Note: "the page's measurements"},
}
