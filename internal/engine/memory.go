package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Default size of a host's KV caches, vLLM's for CPUs: as much where there is room for it. Memory is
// touched only when blocks come into use, but all of it is planned for.
const defaultCacheBytes = 4 << 30

// What processes take beside what is counted.
const (
	// idleRank is a rank's process before it has loaded: the program, and its runtime.
	idleRank = 40 << 20
	// rankBuffers is what a rank exchanges tensors through, stageBuffers what it hands the hidden
	// state on through.
	rankBuffers, stageBuffers = 2 << 20, 10 << 20
	// driverRoom is for requests, answers and constraints on their way, grammarRoom for those of the
	// rank that samples.
	driverRoom, grammarRoom = 64 << 20, 24 << 20
)

// plan says what each rank takes, decides how many KV blocks each has, and refuses what does not fit
// into this machine's memory. That of other machines is compared when their ranks have come.
func (b *opening) plan() error {
	b.info.BlockSize = b.cfg.Cache.BlockSize
	if b.bounds == nil && b.opt.Null == nil {
		b.bounds = b.opt.bounds()
	}
	p, err := b.makePlan()
	if p != nil {
		b.planned = p
		b.setBlocks(p.Blocks)
	}
	if misfit := (*memory.Misfit)(nil); errors.As(err, &misfit) && b.blame(misfit) {
		return &config.UsageError{Err: err}
	}
	return err
}

// makePlan plans the memory of this machine as the configuration says.
func (b *opening) makePlan() (*memory.Plan, error) {
	if err := b.weigh(); err != nil {
		return nil, err
	}
	cache, err := b.cache()
	if err != nil {
		return nil, err
	}
	var hosts []memory.Host
	if ranks := b.ranksOf(b.numbers()); len(ranks) > 0 {
		hosts = append(hosts, b.thisHost(ranks))
	}
	return memory.Make(hosts, cache, b.cfg.Cache.Share())
}

// blame tells whether a flag that was given is why the plan does not fit: with another value of it all
// else does. It adds such values to the ways out.
func (b *opening) blame(misfit *memory.Misfit) (flag bool) {
	fits := func(change func(o *opening, c *config.Config)) bool {
		o, cfg := *b, *b.cfg
		o.cfg = &cfg
		change(&o, &cfg)
		_, err := o.makePlan()
		return err == nil
	}
	// No more than the least cache is needed for all else to be as it was asked for.
	flag = misfit.Asked() || b.cfg.Model.MaxModelLen > 0 && fits(func(o *opening, c *config.Config) {
		o.info.MaxModelLen = c.Cache.BlockSize
	}) || b.cfg.Cache.MemoryUtilization > 0 && fits(func(_ *opening, c *config.Config) {
		c.Cache.MemoryUtilization = 1
	})
	try := func(given bool, way string, change func(o *opening, c *config.Config)) {
		if fits(change) {
			misfit.More, flag = append(misfit.More, way), flag || given
		}
	}
	if now, usual := b.cfg.Schedule, config.Default().Schedule; now.MaxNumBatchedTokens > usual.MaxNumBatchedTokens {
		way := fmt.Sprintf("--max-num-batched-tokens %d", usual.MaxNumBatchedTokens)
		if now.MaxNumSeqs > usual.MaxNumSeqs {
			way += fmt.Sprintf(" with --max-num-seqs %d", usual.MaxNumSeqs)
		}
		try(true, way+" fits", func(_ *opening, c *config.Config) {
			c.Schedule.MaxNumBatchedTokens = usual.MaxNumBatchedTokens
			c.Schedule.MaxNumSeqs = min(now.MaxNumSeqs, usual.MaxNumSeqs)
		})
	}
	if b.dtype == compute.Float32 {
		try(b.cfg.Model.DType != "auto", "--dtype bfloat16 fits",
			func(o *opening, _ *config.Config) { o.dtype = compute.BFloat16 })
	}
	if b.cfg.Server.EnableRLHF {
		try(true, "it fits without --enable-rlhf",
			func(_ *opening, c *config.Config) { c.Server.EnableRLHF = false })
	}
	for n := b.engines() - 1; n > 0; n-- {
		engines := func(_ *opening, c *config.Config) { c.Parallel.DataParallelSize = n }
		if fits(engines) {
			try(true, fmt.Sprintf("--data-parallel-size %d fits", n), engines)
			break
		}
	}
	if len(misfit.More) == 0 && misfit.Fit() == 0 {
		misfit.More = b.smallerSteps()
	}
	return flag
}

// smallerSteps are what fits with smaller steps, with a part of the greatest length if need be.
func (b *opening) smallerSteps() []string {
	o, cfg := *b, *b.cfg
	o.cfg = &cfg
	was := cfg.Schedule
	for n := was.MaxNumBatchedTokens / 2; n >= 16; n /= 2 {
		cfg.Schedule.MaxNumBatchedTokens, cfg.Schedule.MaxNumSeqs = n, min(n, was.MaxNumSeqs)
		_, err := o.makePlan()
		misfit, length := (*memory.Misfit)(nil), b.info.MaxModelLen
		if errors.As(err, &misfit) {
			length = int(misfit.Fit()) * o.info.BlockSize
		}
		if length < b.info.MaxModelLen/4 {
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

// bounds are those of this machine.
func (o *Options) bounds() memory.Bounds {
	if o.Bounds != nil {
		return o.Bounds()
	}
	return machine.Memory()
}

// numbers are those of the engines that are opened first.
func (b *opening) numbers() []int {
	numbers := make([]int, b.engines())
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// setBlocks gives the KV cache of each rank a number of blocks.
func (b *opening) setBlocks(blocks int64) {
	b.info.Blocks = int(blocks)
	b.info.CacheBytes = blocks * b.blockBytes()
}

// blockBytes is one block of the rank with the most layers.
func (b *opening) blockBytes() int64 {
	shape := model.CacheShape(b.model, slices.Max(b.info.StageLayers),
		b.cfg.Parallel.TensorParallelSize, 1, b.cfg.Cache.BlockSize, b.dtype)
	return int64(shape.BytesPerBlock())
}

// cache is what is asked of the KV cache.
func (b *opening) cache() (memory.Cache, error) {
	c, each := &b.cfg.Cache, b.blockBytes()
	least := int64(b.info.MaxModelLen+c.BlockSize-1) / int64(c.BlockSize)
	m := memory.Cache{Least: least, Positions: b.info.MaxModelLen, BlockSize: c.BlockSize}
	switch {
	case c.Blocks > 0:
		m.Blocks, m.Asked = int64(c.Blocks), c.Asked()
	case c.MemoryBytes > 0:
		m.Blocks, m.Asked = c.MemoryBytes/each, c.Asked()
	default:
		m.Most = least * int64(b.cfg.Schedule.MaxNumSeqs)
		// Which hosts Ray gives to several engines is not known before they have come.
		if c.MemoryUtilization == 0 || b.backend() == "ray" && b.engines() > 1 {
			m.Most = min(m.Most, defaultCacheBytes/int64(max(1, b.ranksHere()))/each)
		}
		// Slots of the cache are numbered by 31 bits.
		m.Most = min(m.Most, maxBlocks)
	}
	if m.Asked != "" && m.Blocks < least {
		return m, usage("the KV cache of %d blocks of %d tokens (%s) cannot hold one sequence of "+
			"--max-model-len %d: %d bytes are needed", m.Blocks, c.BlockSize, m.Asked, b.info.MaxModelLen,
			least*each)
	}
	if m.Blocks > maxBlocks {
		return m, usage("%s asks for %d blocks, more than %d", m.Asked, m.Blocks, maxBlocks)
	}
	return m, nil
}

func usage(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

const maxBlocks = 1 << 27

// weigh finds out what a rank of each stage takes. Weights that cannot be read are counted as
// config.json has them: the ranks will say what is wrong with them.
func (b *opening) weigh() error {
	b.needs = make([]memory.Rank, len(b.info.StageLayers))
	if b.opt.Null != nil {
		return nil
	}
	var src layers.Source
	if b.cfg.Model.LoadFormat != "dummy" {
		if c, err := checkpoint.Open(b.folder); err == nil {
			defer c.Close()
			src, b.modelBytes = model.FromCheckpoint(c), c.Bytes()
		}
	}
	l := b.cfg.Parallel.Layout()
	for stage := range b.needs {
		from, to := b.stages.Range(stage, b.model.Layers)
		u := model.Use{DType: b.dtype, Layout: l, Stage: model.Stage{From: from, To: to},
			Rows: b.rows(), MaxLen: b.info.MaxModelLen}
		f, err := model.Weigh(b.model, src, u)
		if err != nil && src != nil {
			f, err = model.Weigh(b.model, nil, u)
		}
		if err != nil {
			return fmt.Errorf("model %q: %w", b.info.Root, err)
		}
		b.needs[stage] = b.need(stage, &f)
	}
	return nil
}

// rows is the most rows of a step.
func (b *opening) rows() int {
	c := b.scheduling()
	return max(c.Budget(), c.MaxSeqs)
}

// need is what a rank of a stage takes.
func (b *opening) need(stage int, f *model.Footprint) memory.Rank {
	l, count := b.cfg.Parallel.Layout(), b.info.StageLayers[stage]
	shape := model.CacheShape(b.model, count, l.TP, 1, b.info.BlockSize, b.dtype)
	r := memory.Rank{Weights: f.Packed + f.Vectors, Table: f.Tables, Block: int64(shape.BytesPerBlock()),
		Work: f.Activations, PerThread: f.PerThread}
	if b.cfg.Model.LoadFormat == "dummy" {
		r.Own, r.Loading = true, f.Tensors
	}
	if b.cfg.Server.EnableRLHF {
		r.Update = r.Weights
	}
	if b.backend() != "uni" {
		r.Process = idleRank + rankBuffers
		if l.PP > 1 {
			r.Process += stageBuffers
		}
	}
	return r
}

// ranksOf are the needs of the ranks on this machine of engines. Those that Ray places are where it
// puts them.
func (b *opening) ranksOf(engines []int) (ranks []memory.Rank) {
	if b.backend() == "ray" {
		return nil
	}
	threads := cmp.Or(b.cfg.Parallel.CPUThreads, max(1, machine.Cores()/max(1, b.ranksHere())))
	for _, engine := range engines {
		for rank := range b.ranks {
			if b.cfg.Parallel.Nodes.Count > 1 && engine*b.ranks+rank >= b.nodeShare() {
				return ranks // on other nodes, as those that follow
			}
			ranks = append(ranks, b.needOf(rank, threads))
		}
	}
	return ranks
}

// needOf is what a rank of an engine takes.
func (b *opening) needOf(rank, threads int) memory.Rank {
	l := b.cfg.Parallel.Layout()
	stage := l.Place(rank).PP
	r := b.needs[stage]
	r.Threads = cmp.Or(b.cfg.Parallel.CPUThreads, threads)
	if b.opt.Null != nil {
		return r
	}
	u := runner.Use{Vocab: b.model.VocabSize, Rows: b.rows(), MaxSeqs: b.cfg.Schedule.MaxNumSeqs,
		MaxModelLen: b.info.MaxModelLen, Shares: l.TP, Last: stage == l.PP-1,
		Output: rank == l.Output()}
	work, each := runner.Footprint(u)
	r.Work += work
	r.PerThread += each
	if u.Output && r.Process > 0 {
		r.Process += grammarRoom
	}
	return r
}

// heapOfRanks is how large the heap of a rank's process may become: beside what each thread adds.
func (b *opening) heapOfRanks() (bytes, perThread int64) {
	for rank := range b.ranks {
		r := b.needOf(rank, 1)
		each := memory.Rank{Work: r.PerThread}
		perThread = max(perThread, each.Heap())
		r.PerThread = 0
		bytes = max(bytes, r.Heap()+r.Process)
	}
	return bytes, perThread
}

// constraintBytes is how much all constraints of a process may take: what is planned for them, and a part
// of what the limit of this machine leaves beside the plan, for the driver and for the rank of each engine
// that samples. It is 0 where the ranks are on machines of which nothing is known.
func (b *opening) constraintBytes() int64 {
	if b.planned == nil || len(b.planned.Hosts) == 0 {
		return 0
	}
	h := &b.planned.Hosts[0]
	room, _, known := h.Bounds.Room(1)
	if !known {
		return 0
	}
	left := max(0, room-h.Parts(b.planned.Blocks).Total())
	return grammarRoom + left/int64(1+b.engines())
}

// limitHeap has the collector of this process, in which ranks compute, keep what lies on the heap within
// what the plan has for it, unless the user has set a limit (GOMEMLIMIT, GOGC). No limit is set to that:
// requests beyond what is planned for them would have it collect all the time.
func (b *opening) limitHeap() {
	if b.backend() != "uni" || b.planned == nil || len(b.planned.Hosts) == 0 {
		return
	}
	h := &b.planned.Hosts[0]
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(h.GarbagePercent())
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		debug.SetMemoryLimit(b.planned.HeapRoom(h) + int64(m.Sys))
	}
}

// nodeShare is how many ranks each node has.
func (b *opening) nodeShare() int { return cmp.Or(b.share, b.ranksHere()) }

// thisHost is this machine with ranks of engines.
func (b *opening) thisHost(ranks []memory.Rank) memory.Host {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := memory.Host{Name: launch.ThisHost, Bounds: b.bounds, Ranks: ranks, Update: b.updateBytes(),
		// The collector lets the heap grow to twice what is in use now.
		Driver: driverRoom + int64(m.HeapAlloc)}
	if b.backend() != "uni" {
		h.Driver += b.cfg.Queue.MemoryBytes * int64(len(ranks)+b.ranks-1) / int64(b.ranks)
	}
	return h
}

// updateBytes is what weights take that come to a host whole, those that count and the next ones.
func (b *opening) updateBytes() int64 {
	if !b.cfg.Server.EnableRLHF {
		return 0
	}
	return 2 * b.modelBytes
}

// replan plans the memory for another layout, in which the caches keep their blocks. An error that is a
// *Refused says what does not fit.
func (b *opening) replan() error {
	if err := b.weigh(); err != nil {
		return err
	}
	b.setBlocks(int64(b.info.Blocks))
	if refused := b.compare(b.bounds, b.numbers()); refused != nil {
		return refused
	}
	return nil
}

// compare refuses engines whose caches have the blocks that those before have, where they do not fit
// into bounds of this machine.
func (b *opening) compare(bounds memory.Bounds, engines []int) *Refused {
	ranks := b.ranksOf(engines)
	if len(ranks) == 0 {
		return nil
	}
	h := b.thisHost(ranks)
	h.Bounds = bounds
	var misfit *memory.Misfit
	if _, err := memory.Make([]memory.Host{h}, b.fixedCache(), b.cfg.Cache.Share()); errors.As(err, &misfit) {
		return &Refused{misfit.What()}
	}
	return nil
}

// checkMemory refuses more engines of the numbers, beside as many as make total, that do not fit into
// this machine's memory. All of them must fit into what was there before the first one came, caches
// that have not come into use included, and the new ones into what is there now.
func (b *opening) checkMemory(numbers []int, total int) error {
	if b.opt.Null != nil {
		return nil
	}
	o, cfg := *b, *b.cfg
	o.cfg = &cfg
	cfg.Parallel.DataParallelSize = total
	all := slices.DeleteFunc(o.numbers(), func(n int) bool { return slices.Contains(numbers, n) })
	all = append(all, numbers...)
	now := b.opt.bounds()
	err := cmp.Or(o.compare(b.bounds, all), o.compare(now, numbers))
	if err == nil {
		return nil
	}
	fit := len(numbers)
	for ; fit > 0 && (o.compare(b.bounds, all[:len(all)-len(numbers)+fit]) != nil ||
		o.compare(now, numbers[:fit]) != nil); fit-- {
	}
	return refuse("%s: no more engines than %d fit", err.Error(), total-len(numbers)+fit)
}
