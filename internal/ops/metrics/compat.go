package metrics

import (
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/compat"
)

// Compat says of each series how it stands to vLLM's of the same name after the prefix.
func Compat() ([]compat.Entry, error) {
	m := New(Options{})
	m.Expect("/", "GET")
	m.Engine(0).SetCacheConfig(CacheConfig{})
	m.Engine(0).SetDrafts(1)
	m.Engine(0).WatchLinks(func() []Link { return []Link{{}} })
	m.Engine(0).WatchGPUs(func() []GPU { return []GPU{measured(0)} })
	m.Engine(0).WatchExperts(func() []Experts { return []Experts{{}} })
	families, err := m.registry.Gather()
	if err != nil {
		return nil, err
	}
	list := slices.Clone(absent)
	for _, f := range families {
		name, prefixed := strings.CutPrefix(f.GetName(), prefix)
		begins := func(begin string) bool { return strings.HasPrefix(name, begin) }
		e := compat.Entry{Name: name, Status: compat.Same, Note: notes[name]}
		switch {
		case strings.HasPrefix(name, "go_"), strings.HasPrefix(name, "process_"):
			continue
		case !prefixed:
			e.Note = "without a prefix; the handler is the route's pattern"
		case slices.ContainsFunc(own, begins):
			e.Status, e.Note = compat.Ours, f.GetHelp()
		}
		list = append(list, e)
	}
	compat.Sort(list)
	return list, nil
}

// measured is a GPU of which all figures are known.
func measured(rank int) GPU {
	g := GPU{Rank: rank}
	for f := range status.Figures {
		g.Know(f, uint64(f))
	}
	return g
}

// own are beginnings of names that vLLM does not have.
var own = []string{"engine_up", "worker_restarts", "condemned_", "grammar_", "batch_",
	"kv_transfer", "kv_offload_", "link_", "gpu_", "expert_", "ranks_"}

// notes are of names that vLLM has.
var notes = map[string]string{
	"cache_config_info": "labels block_size, num_gpu_blocks, enable_prefix_caching, " +
		"cache_dtype",
	"admission_rejections_total":          "reasons " + strings.Join(Rejections, ", "),
	"request_success_total":               "reasons stop, length, abort, error, repetition",
	"prefix_cache_queries_total":          "in tokens",
	"prefix_cache_hits_total":             "in tokens",
	"external_prefix_cache_queries_total": "in tokens that the prefix cache lacks",
	"external_prefix_cache_hits_total":    "in tokens from files",
}

// absent are vLLM's that there are not.
var absent = []compat.Entry{
	{Name: "time_per_output_token_seconds", Status: compat.Refused,
		Note: "the old name of inter_token_latency_seconds"},
	{Name: "lora_requests_info", Status: compat.Refused, Note: "adapters are at /v1/models"},
	{Name: "corrupted_requests", Status: compat.Refused},
	{Name: "kv_block_*", Status: compat.Refused},
	{Name: "python_*", Status: compat.Refused, Note: "go_* and process_* instead"},
}
