package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/eagleray/eagleray/internal/builtin"
	"github.com/eagleray/eagleray/internal/chattemplate"
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/hub"
	"github.com/eagleray/eagleray/internal/metrics"
	"github.com/eagleray/eagleray/internal/model"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/schedule"
	"github.com/eagleray/eagleray/internal/status"
	"github.com/eagleray/eagleray/internal/tokenizer"
)

// Info is what clients may know of the served model.
type Info struct {
	// Names are the names it is served under.
	Names []string
	// Root is where it came from.
	Root string
	// Defaults are what requests start from: generation config, ends of an output, vocabulary, longest sequence.
	sample.Defaults
	// Tokenizer is nil when it was skipped: then prompts are token ids and outputs too.
	Tokenizer *tokenizer.Tokenizer
	// Template renders conversations; it is nil when the model has none.
	Template *chattemplate.Template
	// DType is what the model runs in, WeightBytes the size of all shards.
	DType       string
	WeightBytes int64
	// Blocks and BlockSize are the KV cache of each rank, CacheBytes its size.
	Blocks, BlockSize int
	CacheBytes        int64
	// Ranks are the workers.
	Ranks []queue.Ready
}

// Options configure Open.
type Options struct {
	Config config.Config
	Log    *slog.Logger
	// Events is notified of everything that happens to the engine, beside the log; nil is nobody.
	Events status.Listener
	// WorkerOutput receives what worker processes print; nil is standard error.
	WorkerOutput io.Writer
}

// collectiveBytes is the largest piece in which ranks of one host exchange tensors.
const collectiveBytes = 1 << 20

// Open resolves the model, starts the ranks and the step loop. Errors name the flag or file at fault.
func Open(ctx context.Context, opt Options) (*Engine, *metrics.Metrics, error) {
	b := &opening{ctx: ctx, opt: opt, cfg: &opt.Config}
	if opt.Log == nil {
		b.opt.Log = slog.New(slog.DiscardHandler)
	}
	b.events = status.Tee(status.LogTo(b.opt.Log), opt.Events)
	e, err := b.open()
	if err != nil {
		return nil, nil, err
	}
	return e, e.metrics, nil
}

// opening is one call of Open.
type opening struct {
	ctx    context.Context
	opt    Options
	events status.Listener
	cfg    *config.Config
	folder checkpoint.Folder
	dir    string // absolute; "" for the built-in model
	model  *checkpoint.Config
	info   Info
	dtype  compute.DType
	ranks  int
	// ends are the generation config's end-of-sequence tokens.
	ends []int
	// fromHub says that dir is a snapshot of a Hub repo, which other nodes can fetch too.
	fromHub bool
}

func (b *opening) open() (*Engine, error) {
	for _, f := range []func() error{b.resolve, b.readModel, b.readTokenizer, b.sizeCache} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	c := b.cfg
	if !c.Schedule.ChunkedPrefill {
		// A prompt that is not cut must fit a step.
		c.Schedule.MaxNumBatchedTokens = max(c.Schedule.MaxNumBatchedTokens, b.info.MaxModelLen)
	}
	sched, err := schedule.New(schedule.Config{
		MaxSeqs: c.Schedule.MaxNumSeqs, MaxTokens: c.Schedule.MaxNumBatchedTokens, MaxModelLen: b.info.MaxModelLen,
		BlockSize: b.info.BlockSize, Blocks: b.info.Blocks, PrefixCaching: c.Cache.PrefixCaching,
		ChunkedPrefill: c.Schedule.ChunkedPrefill, LongPrefillTokens: c.Schedule.LongPrefillTokenThreshold,
		Priority: c.Schedule.Policy == "priority",
	})
	if err != nil {
		return nil, err
	}
	ranks, err := b.supervisor()
	if err != nil {
		return nil, err
	}
	group, err := ranks.start(b.ctx)
	if err != nil {
		return nil, err
	}
	b.info.Ranks = group.Ranks()
	for _, r := range b.info.Ranks {
		b.info.WeightBytes += r.WeightBytes
	}
	m := metrics.New(metrics.Options{ModelName: b.info.Names[0], MaxModelLen: b.info.MaxModelLen})
	m.SetCacheConfig(metrics.CacheConfig{BlockSize: b.info.BlockSize, Blocks: b.info.Blocks,
		PrefixCaching: c.Cache.PrefixCaching, Dtype: b.info.DType})
	m.WatchLinks(ranks.links)
	e := &Engine{info: b.info, ranks: ranks, group: group, metrics: m, sched: sched,
		events:   status.Tee(b.events, m.Listen),
		maxQueue: c.Schedule.MaxNumQueuedReqs, requests: map[uint64]*request{},
		wake: make(chan struct{}, 1), done: make(chan struct{}), failed: make(chan struct{})}
	e.slowStep = c.Queue.StallWarning
	e.ownThread = ranks.backend != "uni"
	go e.loop()
	return e, nil
}

// resolve finds the model's folder, downloading it when it is a Hub repo.
func (b *opening) resolve() error {
	m := &b.cfg.Model
	b.info.Names = m.ServedNames
	if m.Path == "" {
		b.folder = builtin.Folder()
		b.info.Root = builtin.Name
	} else {
		dir, err := b.download(m.Path)
		if err != nil {
			return err
		}
		if b.folder, err = checkpoint.Dir(dir); err != nil {
			return err
		}
		// Ranks of another folder, as Ray's are, must find it too.
		b.fromHub = dir != m.Path
		if b.dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		b.info.Root = m.Path
	}
	if len(b.info.Names) == 0 {
		b.info.Names = []string{b.info.Root}
	}
	return nil
}

func (b *opening) download(name string) (string, error) {
	return hub.Resolve(b.ctx, name, hub.Options{
		Revision: b.cfg.Model.Revision, DownloadDir: b.cfg.Model.DownloadDir,
		Progress: func(p hub.Progress) { b.progress(-1, "download "+p.File, p.AllDone, p.AllTotal) },
		Warn:     func(text string) { b.opt.Log.Warn(text) },
	})
}

func (b *opening) progress(rank int, phase string, done, total int64) {
	b.events.Emit(status.Progress{Rank: rank, Phase: phase, Done: done, Total: total})
}

// readModel reads config.json and what follows from it.
func (b *opening) readModel() error {
	raw, err := b.folder.ReadFile("config.json")
	if err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	if b.model, err = checkpoint.ReadConfig(raw); err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	if _, err := model.Architecture(b.model); err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	b.ranks = b.cfg.Parallel.TensorParallelSize
	if err := model.CheckShard(b.model, b.ranks); err != nil {
		return fmt.Errorf("--tensor-parallel-size: %w", err)
	}
	if err := b.readGenerationConfig(); err != nil {
		return err
	}
	name := b.cfg.Model.DType
	if name == "auto" {
		name = b.model.DType
		// As in vLLM, float32 checkpoints run in the platform's 16-bit type unless float32 is asked for.
		if name == "" || name == "float32" {
			name = "bfloat16"
		}
	}
	if b.dtype, err = compute.ParseDType(name); err != nil {
		return fmt.Errorf("--dtype: %w", err)
	}
	b.info.DType = b.dtype.String()
	b.info.VocabSize = b.model.VocabSize
	longest := maxContext(b.model)
	b.info.MaxModelLen = b.cfg.Model.MaxModelLen
	if b.info.MaxModelLen == 0 {
		b.info.MaxModelLen = longest
	}
	if b.info.MaxModelLen > longest {
		return fmt.Errorf("--max-model-len %d is more than the %d positions the model has", b.info.MaxModelLen, longest)
	}
	return nil
}

// maxContext is the longest sequence the model's positions allow: scaled rotary embeddings reach further than the
// positions it was first trained on (as vLLM's _get_and_verify_max_len).
func maxContext(c *checkpoint.Config) int {
	switch c.Rope.Type {
	case "linear":
		return int(float64(c.MaxPositions) * c.Rope.Factor)
	case "yarn":
		return int(float64(c.Rope.OriginalMaxPositions) * c.Rope.Factor)
	}
	return c.MaxPositions
}

// readGenerationConfig finds what the model's authors suggest for sampling, and puts the flag's values over it.
func (b *opening) readGenerationConfig() error {
	g := &checkpoint.GenerationConfig{}
	if where := b.cfg.Model.GenerationConfig; where != "vllm" {
		folder := b.folder
		if where != "auto" {
			var err error
			if folder, err = checkpoint.Dir(where); err != nil {
				return fmt.Errorf("--generation-config: %w", err)
			}
		}
		if slices.Contains(folder.Names(), "generation_config.json") {
			raw, err := folder.ReadFile("generation_config.json")
			if err != nil {
				return err
			}
			if g, err = checkpoint.ReadGenerationConfig(raw); err != nil {
				return err
			}
		}
	}
	if raw := b.cfg.Model.OverrideGenerationConfig; raw != "" {
		over, err := checkpoint.ReadGenerationConfig([]byte(raw))
		if err != nil {
			return fmt.Errorf("--override-generation-config: %w", err)
		}
		g.Settings = over.Settings.Over(g.Settings)
		if over.EOS != nil {
			g.EOS = over.EOS
		}
	}
	b.info.Generation, b.ends = g.Settings, g.EOS
	return nil
}

// readTokenizer loads the tokenizer and the chat template, and finds the tokens that end an output.
func (b *opening) readTokenizer() error {
	if !b.cfg.Model.SkipTokenizerInit {
		folder := b.folder
		if t := b.cfg.Model.Tokenizer; t != "" {
			dir, err := b.download(t)
			if err != nil {
				return fmt.Errorf("--tokenizer: %w", err)
			}
			if folder, err = checkpoint.Dir(dir); err != nil {
				return fmt.Errorf("--tokenizer: %w", err)
			}
		}
		if err := b.loadTokenizer(folder); err != nil {
			return err
		}
	}
	b.info.EOS = -1
	if len(b.model.EOS) > 0 {
		b.info.EOS = int32(b.model.EOS[0])
	}
	if b.info.Tokenizer != nil {
		if id, ok := b.info.Tokenizer.ID(b.info.Tokenizer.Config().EOSToken); ok {
			b.info.EOS = id
		}
	}
	for _, id := range b.ends {
		if t := int32(id); t != b.info.EOS && !slices.Contains(b.info.StopTokens, t) {
			b.info.StopTokens = append(b.info.StopTokens, t)
		}
	}
	return nil
}

func (b *opening) loadTokenizer(folder checkpoint.Folder) error {
	raw, err := folder.ReadFile("tokenizer.json")
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("model %q has no tokenizer.json: give --tokenizer, or serve token ids with --skip-tokenizer-init", b.info.Root)
	}
	if err != nil {
		return err
	}
	var tokConfig []byte
	if slices.Contains(folder.Names(), "tokenizer_config.json") {
		if tokConfig, err = folder.ReadFile("tokenizer_config.json"); err != nil {
			return err
		}
	}
	if b.info.Tokenizer, err = tokenizer.Parse(raw, tokConfig); err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	source, from, err := b.templateSource(folder)
	if err != nil || source == "" {
		return err
	}
	if b.info.Template, err = chattemplate.Parse(source); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// templateSource finds the chat template: the flag's, the folder's own file, the tokenizer's.
func (b *opening) templateSource(folder checkpoint.Folder) (source, from string, err error) {
	if t := b.cfg.Model.ChatTemplate; t != "" {
		raw, err := os.ReadFile(t)
		if err == nil {
			return string(raw), "--chat-template " + t, nil
		}
		if looksLikeTemplate(t) {
			return t, "--chat-template", nil
		}
		return "", "", fmt.Errorf("--chat-template: %w", err)
	}
	if slices.Contains(folder.Names(), "chat_template.jinja") {
		raw, err := folder.ReadFile("chat_template.jinja")
		return string(raw), "chat_template.jinja", err
	}
	return b.info.Tokenizer.Config().ChatTemplates["default"], "chat template of tokenizer_config.json", nil
}

// sizeCache decides how many KV blocks each rank has.
func (b *opening) sizeCache() error {
	c := &b.cfg.Cache
	b.info.BlockSize = c.BlockSize
	perBlock := int64(model.CacheShape(b.model, b.ranks, 1, c.BlockSize, b.dtype).BytesPerBlock())
	perSequence := (b.info.MaxModelLen + c.BlockSize - 1) / c.BlockSize
	blocks := int64(c.Blocks)
	switch {
	case blocks > 0:
	case c.MemoryBytes > 0:
		blocks = c.MemoryBytes / perBlock
	default:
		blocks = defaultBlocks(perBlock, int64(perSequence), int64(b.cfg.Schedule.MaxNumSeqs), int64(b.ranks))
	}
	if blocks < int64(perSequence) {
		return fmt.Errorf("the KV cache of %d blocks of %d tokens (--kv-cache-memory-bytes) cannot hold one sequence of --max-model-len %d: %d bytes are needed",
			blocks, c.BlockSize, b.info.MaxModelLen, int64(perSequence)*perBlock)
	}
	if blocks > 1<<27 {
		return fmt.Errorf("--kv-cache-memory-bytes asks for %d blocks, more than %d", blocks, 1<<27)
	}
	b.info.Blocks = int(blocks)
	b.info.CacheBytes = blocks * perBlock
	return nil
}

// Default size of a host's KV caches: vLLM's for CPUs, if half of what is free allows it. Memory is touched
// only when blocks come into use.
const defaultCacheBytes = 4 << 30

func defaultBlocks(perBlock, perSequence, seqs, ranks int64) int64 {
	budget := int64(defaultCacheBytes)
	if free := availableMemory(); free > 0 {
		budget = min(budget, free/2)
	}
	return max(min(budget/ranks/perBlock, seqs*perSequence), perSequence)
}
