package open

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/offload"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Default size of a host's KV caches, vLLM's for CPUs: as much where there is room for it. Memory
// is touched only when blocks come into use, but all of it is planned for.
const defaultCacheBytes = 4 << 30

// What processes take beside what is counted.
const (
	// idleRank is a rank's process before it has loaded: the program, and its runtime.
	idleRank = 40 << 20
	// rankBuffers is what a rank exchanges tensors through, stageBuffers what it hands the hidden
	// state on through.
	rankBuffers, stageBuffers = 2 << 20, 10 << 20
	// driverRoom is for requests, answers and constraints on their way, grammarRoom for those of
	// the rank that samples.
	driverRoom, grammarRoom = 64 << 20, 24 << 20
)

// plan says what each rank takes, decides how many KV blocks each has, and refuses what does not
// fit into this machine's memory. That of other machines is compared when their ranks have come.
func (r *resolver) plan() error {
	r.Info.BlockSize = r.Config.Cache.BlockSize
	if r.bounds == nil && r.Null == nil {
		r.bounds = r.read()
	}
	if err := r.lookAtGPUs(); err != nil {
		return err
	}
	r.chooseGroups()
	p, err := r.makePlan()
	if p != nil {
		r.Planned = p
		r.setBlocks(p.Blocks)
	}
	if misfit := (*memory.Misfit)(nil); errors.As(err, &misfit) && r.blame(misfit) {
		return &config.UsageError{Err: err}
	}
	return err
}

// makePlan plans the memory of this machine as the configuration says.
func (s *Spec) makePlan() (*memory.Plan, error) {
	if err := s.weigh(); err != nil {
		return nil, err
	}
	cache, err := s.cache()
	if err != nil {
		return nil, err
	}
	var hosts []memory.Host
	switch ranks := s.ranksOf(s.numbers()); {
	case s.OnGPUs() && s.Null == nil:
		if hosts, err = s.gpuHosts(ranks); err != nil {
			return nil, err
		}
	case len(ranks) > 0:
		hosts = append(hosts, s.thisHost(ranks))
	}
	return memory.Make(hosts, cache, s.Config.Cache.Share())
}

// blame tells whether a flag that was given is why the plan does not fit: with another value of it
// all else does. It adds such values to the ways out.
func (s *Spec) blame(misfit *memory.Misfit) (flag bool) {
	fits := func(change func(o *Spec, c *config.Config)) bool {
		o, cfg := *s, *s.Config
		o.Config = &cfg
		change(&o, &cfg)
		_, err := o.makePlan()
		return err == nil
	}
	// No more than the least cache is needed for all else to be as it was asked for.
	flag = misfit.Asked() || s.Config.Model.MaxModelLen > 0 && fits(func(o *Spec,
		c *config.Config) {
		o.Info.MaxModelLen = c.Cache.BlockSize
	}) || s.Config.Cache.MemoryUtilization > 0 && fits(func(_ *Spec, c *config.Config) {
		c.Cache.MemoryUtilization = 1
	})
	try := func(given bool, way string, change func(o *Spec, c *config.Config)) {
		if fits(change) {
			misfit.More, flag = append(misfit.More, way), flag || given
		}
	}
	if now, usual := s.Config.Schedule,
		config.Default().Schedule; now.MaxNumBatchedTokens > usual.MaxNumBatchedTokens {
		way := fmt.Sprintf("--max-num-batched-tokens %d", usual.MaxNumBatchedTokens)
		if now.MaxNumSeqs > usual.MaxNumSeqs {
			way += fmt.Sprintf(" with --max-num-seqs %d", usual.MaxNumSeqs)
		}
		try(true, way+" fits", func(_ *Spec, c *config.Config) {
			c.Schedule.MaxNumBatchedTokens = usual.MaxNumBatchedTokens
			c.Schedule.MaxNumSeqs = min(now.MaxNumSeqs, usual.MaxNumSeqs)
		})
	}
	if s.dtype == compute.Float32 {
		try(s.Config.Model.DType != "auto", "--dtype bfloat16 fits",
			func(o *Spec, _ *config.Config) { o.dtype = compute.BFloat16 })
	}
	if s.Config.Server.EnableRLHF {
		try(true, "it fits without --enable-rlhf",
			func(_ *Spec, c *config.Config) { c.Server.EnableRLHF = false })
	}
	if s.draft != nil {
		try(true, "it fits without the draft model of --speculative-config",
			func(o *Spec, _ *config.Config) { o.draft = nil })
	}
	if s.Config.Cache.Offloading.GiB > 0 {
		try(true, "it fits with another --kv-offloading-size, or a --kv-offloading-dir on a disk",
			func(_ *Spec, c *config.Config) { c.Cache.Offloading.GiB = 0 })
	}
	for n := s.Engines() - 1; n > 0; n-- {
		engines := func(_ *Spec, c *config.Config) { c.Parallel.SetEngines(n) }
		if fits(engines) {
			try(true, fmt.Sprintf("--data-parallel-size %d fits", n), engines)
			break
		}
	}
	halve := func(name string, n, least int, set func(c *config.Config, n int)) {
		for n > least {
			n /= 2
			fewer := func(_ *Spec, c *config.Config) { set(c, n) }
			if fits(fewer) {
				try(true, fmt.Sprintf("%s %d fits", name, n), fewer)
				return
			}
		}
	}
	if s.states() > 0 {
		halve("--max-num-seqs", s.Config.Schedule.MaxNumSeqs, 1,
			func(c *config.Config, n int) { c.Schedule.MaxNumSeqs = n })
	}
	halve("--num-redundant-experts", s.Config.Parallel.EPLB.Redundant, 0,
		func(c *config.Config, n int) { c.Parallel.EPLB.Redundant = n })
	if len(misfit.More) == 0 && misfit.Fit() == 0 {
		misfit.More = s.smallerSteps()
	}
	return flag
}

// smallerSteps are what fits with smaller steps, with a part of the greatest length if need be.
func (s *Spec) smallerSteps() []string {
	o, cfg := *s, *s.Config
	o.Config = &cfg
	was := cfg.Schedule
	for n := was.MaxNumBatchedTokens / 2; n >= 16; n /= 2 {
		cfg.Schedule.MaxNumBatchedTokens, cfg.Schedule.MaxNumSeqs = n, min(n, was.MaxNumSeqs)
		_, err := o.makePlan()
		misfit, length := (*memory.Misfit)(nil), s.Info.MaxModelLen
		if errors.As(err, &misfit) {
			length = int(misfit.Longest())
		}
		if length < s.Info.MaxModelLen/4 {
			continue
		}
		way := fmt.Sprintf("--max-num-batched-tokens %d", n)
		if n < was.MaxNumSeqs {
			way += fmt.Sprintf(" with --max-num-seqs %d", n)
		}
		if err != nil {
			way += fmt.Sprintf(" and --max-model-len %d", length)
		}
		return []string{way + " fits"}
	}
	return nil
}

// numbers are those of the engines that are opened first.
func (s *Spec) numbers() []int {
	numbers := make([]int, s.Engines())
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// setBlocks gives the KV cache of each rank a number of blocks.
func (s *Spec) setBlocks(blocks int64) {
	s.Info.Blocks = int(blocks)
	s.Info.CacheBytes = blocks * s.BlockBytes()
	s.Info.CacheTokens = int(s.tokens(blocks))
}

// chooseGroups chooses the groups that the layers are in.
func (s *Spec) chooseGroups() {
	if s.Null == nil && !s.Model.Encoder && !s.Config.Cache.OneGroup {
		s.Groups = compute.GroupsOf(s.Model.Cache(), s.Info.MaxModelLen, s.Info.BlockSize,
			s.cacheDType)
	}
}

// BlockBytes is one block of the rank that keeps the most.
func (s *Spec) BlockBytes() (most int64) {
	for stage := range s.Info.StageLayers {
		most = max(most, s.blockBytes(stage))
	}
	last := s.blockBytes(len(s.Info.StageLayers) - 1)
	return max(most, last+s.draft.blockBytes(s.Config.Cache.BlockSize, s.cacheDType))
}

// blockBytes is one block of a rank of a stage, nothing of an encoder.
func (s *Spec) blockBytes(stage int) int64 {
	if s.Model.Encoder {
		return 0
	}
	return int64(s.cacheShape(stage).BytesPerBlock())
}

// cacheShape is that of a rank of a stage, but for the number of blocks and of states.
func (s *Spec) cacheShape(stage int) compute.CacheShape {
	from, to := s.Stages.Range(stage, s.Model.Layers)
	return compute.CacheShape{Layers: model.GroupedLayers(s.Model, from, to,
		s.Config.Parallel.Layout().TP, s.Groups), BlockSize: s.Config.Cache.BlockSize,
		DType: s.cacheDType}
}

// mostBlocks is how many blocks a cache has at most: slots of each layer are numbered by 31 bits.
func (s *Spec) mostBlocks() int64 {
	factor := 1
	for stage := range s.Info.StageLayers {
		shape := s.cacheShape(stage)
		for g := range s.Groups.Count() {
			factor = max(factor, shape.Factor(g))
		}
	}
	return int64(maxBlocks / factor)
}

// keepsStates says that the model keeps something of a request beside what it keeps of positions.
func (s *Spec) keepsStates() bool {
	return compute.StateBytes(s.Model.Cache()) > 0
}

// leastSnapshots is how many states are kept beside those of the requests that run, at least: else
// a quarter of as many.
const leastSnapshots = 4

// snapshots is how many states are kept for prompts that begin as others did.
func (s *Spec) snapshots() int {
	if s.Null != nil || !s.keepsStates() || !s.Config.Cache.PrefixCaching {
		return 0
	}
	return max(leastSnapshots, s.Config.Schedule.MaxNumSeqs/4)
}

// draftStates is how many states are kept of drafts: those of each plan in flight.
func (s *Spec) draftStates() int {
	if s.Null != nil || !s.keepsStates() || s.Config.Speculative.Method == "" {
		return 0
	}
	return draftRows * s.Config.Parallel.Layout().PP
}

// states is how many states a cache keeps: of requests that run, snapshots, and those of drafts.
func (s *Spec) states() int {
	if s.Null != nil || !s.keepsStates() {
		return 0
	}
	return s.Config.Schedule.MaxNumSeqs + s.snapshots() + s.draftStates()
}

// stateBytes is what a rank of a stage keeps of all requests.
func (s *Spec) stateBytes(stage int) int64 {
	from, to := s.Stages.Range(stage, s.Model.Layers)
	each := compute.StateBytes(model.CacheLayers(s.Model, from, to,
		s.Config.Parallel.Layout().TP))
	return int64(each) * int64(s.states())
}

// cache is what is asked of the KV cache.
func (s *Spec) cache() (memory.Cache, error) {
	c, each := &s.Config.Cache, s.BlockBytes()
	least := s.least()
	m := memory.Cache{Least: least, Positions: s.Info.MaxModelLen, Longest: s.longest,
		Tokens: s.tokens}
	switch {
	case s.Model.Encoder: // no blocks, whatever is asked for
	case c.Blocks > 0:
		m.Blocks, m.Asked = int64(c.Blocks), c.Asked()
	case c.MemoryBytes > 0:
		m.Blocks, m.Asked = c.MemoryBytes/each, c.Asked()
	default:
		m.Most = least * int64(s.Config.Schedule.MaxNumSeqs)
		// Which hosts Ray gives to several engines is not known before they have come.
		if c.MemoryUtilization == 0 && !s.OnGPUs() ||
			s.Backend() == "ray" && s.Engines() > 1 {
			m.Most = min(m.Most, defaultCacheBytes/int64(max(1, s.RanksHere()))/each)
		}
		m.Most = min(m.Most, s.mostBlocks())
	}
	if m.Asked != "" && m.Blocks < least {
		return m, usage("the KV cache of %d blocks of %d tokens (%s) cannot hold one sequence of "+
			"--max-model-len %d: %d bytes are needed", m.Blocks, c.BlockSize, m.Asked,
			s.Info.MaxModelLen, least*each)
	}
	if most := s.mostBlocks(); m.Blocks > most {
		return m, usage("%s asks for %d blocks, more than %d", m.Asked, m.Blocks, most)
	}
	return m, nil
}

func usage(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

const maxBlocks = 1 << 27

// weigh finds out what a rank of each stage takes. An error names what is wrong with the weights.
func (s *Spec) weigh() error {
	s.needs = make([]memory.Rank, len(s.Info.StageLayers))
	if s.Null != nil {
		return nil
	}
	var src layers.Source
	if s.Config.Model.LoadFormat != "dummy" {
		c, err := checkpoint.Open(s.folder)
		if err != nil {
			return fmt.Errorf("model %q: %w", s.Info.Root, err)
		}
		defer c.Close()
		src, s.modelBytes = model.FromCheckpoint(c), c.Bytes()
	}
	l := s.Config.Parallel.Layout()
	s.Info.StepBytes = 0
	for stage := range s.needs {
		from, to := s.Stages.Range(stage, s.Model.Layers)
		u := model.Use{Planner: s.planner(), Layout: l,
			Stage: model.Stage{From: from, To: to},
			Rows:  s.rows(), MaxLen: s.Info.MaxModelLen,
			Redundant: s.Config.Parallel.EPLB.Redundant, Moving: s.Config.Parallel.EPLB.Enabled,
			Adapters: s.Config.LoRA.Most(), AdapterRank: s.Config.LoRA.MaxRank}
		f, err := model.Weigh(s.Model, src, u)
		if err != nil {
			return fmt.Errorf("model %q: %w", s.Info.Root, err)
		}
		s.needs[stage] = s.need(stage, &f)
		s.Info.StepBytes += f.Step * int64(l.World()/l.Sizes().PP)
	}
	return s.weighDraft()
}

// planner says what the ranks' device takes.
func (s *Spec) planner() layers.Planner {
	if s.device() == queue.CUDA {
		return cuda.Planner{DType: s.dtype}
	}
	return cpu.Planner{DType: s.dtype}
}

// slots is how many requests a group's ranks know: those of all places.
func (s *Spec) slots() int {
	return s.Config.Schedule.MaxNumSeqs * s.Config.Parallel.Layout().DP
}

// rows is the most rows of a step.
func (s *Spec) rows() int {
	c := s.Scheduling()
	return max(c.Budget(), c.MaxSeqs)
}

// need is what a rank of a stage takes.
func (s *Spec) need(stage int, f *model.Footprint) memory.Rank {
	l := s.Config.Parallel.Layout()
	r := memory.Rank{Weights: f.Packed + f.Vectors, Table: f.Tables, Block: s.blockBytes(stage),
		States: s.stateBytes(stage), Work: f.Activations, PerThread: f.PerThread,
		Loading: f.Unpacked}
	if s.Config.Model.LoadFormat == "dummy" {
		r.Own, r.Loading = true, f.Tensors+f.Unpacked
	}
	if s.Config.Server.EnableRLHF {
		r.Update = r.Weights
	}
	if s.Backend() != "uni" {
		r.Process = idleRank + rankBuffers
		if l.PP > 1 {
			r.Process += stageBuffers
		}
	}
	return r
}

// ranksOf are the needs of the ranks on this machine of engines. Those that Ray places are where it
// puts them.
func (s *Spec) ranksOf(engines []int) (ranks []memory.Rank) {
	if s.Backend() == "ray" {
		return nil
	}
	threads := cmp.Or(s.Config.Parallel.CPUThreads, max(1, machine.Cores()/max(1, s.RanksHere())))
	for _, engine := range engines {
		for rank := range s.Ranks {
			if s.Share > 0 && engine*s.Slots+rank >= s.RanksHere() {
				return ranks // on other nodes, as those that follow
			}
			ranks = append(ranks, s.NeedOf(rank, threads))
		}
	}
	return ranks
}

// NeedOf is what a rank of an engine takes.
func (s *Spec) NeedOf(rank, threads int) memory.Rank {
	l := s.Config.Parallel.Layout()
	stage := l.Place(rank).PP
	r := s.needs[stage]
	r.Threads = cmp.Or(s.Config.Parallel.CPUThreads, threads)
	if s.Null != nil {
		return r
	}
	u := runner.Use{Vocab: s.Model.VocabSize, Rows: s.rows(), MaxSeqs: s.slots(),
		MaxModelLen: s.Info.MaxModelLen, Shares: l.TP}
	if !s.Model.Encoder { // which has no logits
		u.Last, u.Output = stage == l.PP-1, rank == l.Output()
	}
	work, each := runner.Footprint(u)
	r.Work += work
	r.PerThread += each
	if u.Output && r.Process > 0 {
		r.Process += grammarRoom
	}
	if s.draft != nil {
		taps := len(s.draft.config.Taps()) * s.draft.config.HiddenSize
		if l.PP > 1 { // and those of the stages before, as they come
			taps *= 2
		}
		r.Work += int64(taps*s.rows()) * 4
	}
	if d := &s.draftNeed; u.Output {
		r.Draft, r.Block = d.Draft, r.Block+d.Block
		r.Work, r.Loading = r.Work+d.Work, r.Loading+d.Loading
	}
	return r
}

// heapOfRanks is how large the heap of a rank's process may become: beside what each thread adds.
func (s *Spec) heapOfRanks() (bytes, perThread int64) {
	for rank := range s.Ranks {
		r := s.NeedOf(rank, 1)
		each := memory.Rank{Work: r.PerThread}
		perThread = max(perThread, each.Heap())
		r.PerThread = 0
		bytes = max(bytes, r.Heap()+r.Process)
	}
	return bytes, perThread
}

// ConstraintBytes is how much all constraints of a process may take: what is planned for them, and
// a part of what the limit of this machine leaves beside the plan, for the driver and for the rank
// of each engine that samples. It is 0 where the ranks are on machines of which nothing is known.
func (s *Spec) ConstraintBytes() int64 {
	if s.Planned == nil || len(s.Planned.Hosts) == 0 || s.OnGPUs() {
		return 0
	}
	h := &s.Planned.Hosts[0]
	room, _, known := h.Bounds.Room(1)
	if !known {
		return 0
	}
	left := max(0, room-h.Parts(s.Planned.Blocks).Total())
	return grammarRoom + left/int64(1+s.Engines())
}

// thisHost is this machine with ranks of engines.
func (s *Spec) thisHost(ranks []memory.Rank) memory.Host {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files := &s.Config.Cache.Offloading
	h := memory.Host{Name: launch.ThisHost, Bounds: s.bounds, Ranks: ranks, Update: s.UpdateBytes(),
		Files: offload.InMemory(files.Dir, files.Bytes()),
		// The collector lets the heap grow to twice what is in use now.
		Driver: driverRoom + int64(m.HeapAlloc)}
	if s.Backend() != "uni" {
		h.Driver += s.Config.Queue.MemoryBytes * int64(len(ranks)+s.Ranks-1) / int64(s.Ranks)
	}
	return h
}

// UpdateBytes is what weights take that come to a host whole, those that count and the next ones.
func (s *Spec) UpdateBytes() int64 {
	if !s.Config.Server.EnableRLHF {
		return 0
	}
	return 2 * s.modelBytes
}

// replan plans the memory for another layout, in which the caches keep their blocks. An error that
// is a
// *Refused says what does not fit.
func (s *Spec) replan() error {
	if err := s.weigh(); err != nil {
		return err
	}
	s.setBlocks(int64(s.Info.Blocks))
	if refused := s.compare(s.bounds, s.numbers()); refused != nil {
		return refused
	}
	return nil
}

// compare refuses engines whose caches have the blocks that those before have, where they do not
// fit into bounds of this machine.
func (s *Spec) compare(bounds memory.Bounds, engines []int) *Refused {
	ranks := s.ranksOf(engines)
	if len(ranks) == 0 {
		return nil
	}
	if s.OnGPUs() {
		if _, err := s.gpuHosts(ranks); err != nil {
			return &Refused{err.Error()}
		}
		return nil // each has a GPU of its own, of which its first plan was
	}
	h := s.thisHost(ranks)
	h.Bounds = bounds
	var misfit *memory.Misfit
	if _, err := memory.Make([]memory.Host{h}, s.FixedCache(),
		s.Config.Cache.Share()); errors.As(err, &misfit) {
		return &Refused{misfit.What()}
	}
	return nil
}

// CheckMemory refuses more engines of the numbers, beside as many as make total, that do not fit
// into this machine's memory, of which the bounds now are given. All of them must fit into what was
// there before the first one came, caches that have not come into use included, and the new ones
// into what is there now.
func (s *Spec) CheckMemory(now memory.Bounds, numbers []int, total int) error {
	if s.Null != nil {
		return nil
	}
	o := s.WithEngines(total)
	all := slices.DeleteFunc(o.numbers(), func(n int) bool { return slices.Contains(numbers, n) })
	all = append(all, numbers...)
	err := cmp.Or(o.compare(s.bounds, all), o.compare(now, numbers))
	if err == nil {
		return nil
	}
	fit := len(numbers)
	for ; fit > 0 && (o.compare(s.bounds, all[:len(all)-len(numbers)+fit]) != nil ||
		o.compare(now, numbers[:fit]) != nil); fit-- {
	}
	return Refuse("%s: no more engines than %d fit", err.Error(), total-len(numbers)+fit)
}

// FixedCache is a KV cache of the size that was decided.
func (s *Spec) FixedCache() memory.Cache {
	return memory.Cache{Blocks: int64(s.Info.Blocks), Positions: s.Info.MaxModelLen,
		Longest: s.longest, Tokens: s.tokens, Least: s.least(), Asked: s.Config.Cache.Asked()}
}

// withCache is what the scheduler is told with a cache of so many blocks.
func (s *Spec) withCache(blocks int64) *schedule.Config {
	c := s.Scheduling()
	c.Blocks = int(blocks)
	return &c
}

// longest is the greatest length of a sequence that so many blocks have room for.
func (s *Spec) longest(blocks int64) int64 {
	if blocks == 0 {
		return 0
	}
	return int64(s.withCache(blocks).Longest())
}

// tokens is how many tokens of sequences of the greatest length so many blocks hold.
func (s *Spec) tokens(blocks int64) int64 { return int64(s.withCache(blocks).Tokens()) }

// least is how many blocks of KV cache one sequence of the greatest length needs at a time.
func (s *Spec) least() int64 {
	if s.Model.Encoder {
		return 0
	}
	c := s.Scheduling()
	return int64(c.Least())
}
