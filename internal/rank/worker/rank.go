package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/offload"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/rank/weights"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// rank is the state that a rank computes with: its loaded model, and its place in the current
// group.
type rank struct {
	// init is the configuration that it was loaded with.
	init   queue.Init
	device Device
	config *model.Config
	// folder is the model's, group the rank's place among those that share its layers.
	folder checkpoint.Folder
	group  layers.Group
	// neighbours are the ways to other ranks by their devices, none on CPUs.
	neighbours []Neighbours
	// weights are in use, staging is the next update.
	weights loaded
	staging staging
	// adapters are those that requests may have, whatever the weights in use.
	adapters adapterSet
	retiring sync.WaitGroup
	// spare is memory for the next update that is sent here, room the tensors it must hold, if
	// known.
	spare       weights.Spare
	room        *weights.Room
	cache       compute.Cache
	factors     []int // of the cache's groups (compute.CacheShape.Factor)
	draft       draftModel
	vocab       int
	stage       model.Stage
	output      bool
	grammars    *grammars.Cache
	weightBytes int64
	// done is the last executed plan, trail the digests of the last ones.
	done  uint64
	trail runner.Trail
	// agent exchanges blocks with other engines, nil without --kv-transfer-config.
	agent *kvtransfer.Agent
	// offload keeps blocks in files, nil without --kv-offloading-size.
	offload *offload.Folder

	groups join.Groups
	runner planRunner
	status *status.Rank
	teller teller
	// isa and threads are what the rank computes with.
	isa     string
	threads int
	// binding says which processors the threads are bound to, and why.
	binding string
}

// planRunner runs plans: a runner.Runner, or null.
type planRunner interface {
	// Execute runs one plan. On the output rank res is filled with its result.
	Execute(p *step.Plan, res *step.Result) error
}

// progressEvery is how often a load reports how far it is.
const progressEvery = 200 * time.Millisecond

// newRank loads the rank's shard. After an error it has released all it acquired. send sends a
// record to the driver.
func newRank(init queue.Init, at place, st *status.Rank, send func(record []byte) error,
	progress func(queue.Progress) error) (*rank, error) {
	r := &rank{init: init, output: init.Rank == init.Layout.Output(), status: st, isa: "none"}
	r.teller.set(send)
	if init.Null != nil {
		return r, nil
	}
	if err := r.load(at, progress); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// fits reports whether r is a rank loaded with the same configuration.
func (r *rank) fits(init queue.Init, share machine.Share) bool {
	if r != nil {
		init.Later = r.init.Later // the driver brings what is missing
	}
	return r != nil && reflect.DeepEqual(r.init, init) &&
		(init.Null != nil || r.threads == share.Threads)
}

func (r *rank) load(at place, progress func(queue.Progress) error) error {
	init := r.init
	d, err := newDevice(&init, at)
	if err != nil {
		return err
	}
	r.device = d
	r.device.Count(r.status.Moved())
	r.isa, r.threads = r.device.ISA(), r.device.Pool().Threads()
	if r.folder, err = modelFolder(init, progress); err != nil {
		return err
	}
	raw, err := checkpoint.ReadConfig(r.folder)
	if err != nil {
		return err
	}
	if raw, err = model.Override(raw, init.Overrides); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		return err
	}
	if err := cfg.Quantise(init.Quantization); err != nil {
		return err
	}
	cfg.Serve(init.MaxModelLen)
	r.config, r.stage, r.vocab = cfg, stageOf(init, cfg), cfg.VocabSize
	place := init.Layout.Place(init.Rank)
	tp := groupRef{&r.groups.TP}
	r.group = layers.Group{Rank: place.TP, Size: init.Layout.TP, Comm: layers.OnHost{Group: tp},
		OnLayer: r.status.At}
	if init.Device == queue.CUDA && init.Layout.TP > 1 {
		peers := at.gpus.Peers(r.device, place.TP, init.Layout.TP, r.group.Comm, tp)
		r.group.Comm, r.neighbours = peers, append(r.neighbours, peers)
	}
	if n := init.Layout.PCP; n > 1 {
		r.group.PCP = &layers.RowGroup{Rank: place.PCP, Size: n,
			Comm: layers.OnHost{Group: groupRef{&r.groups.PCP}}}
	}
	if n := init.Layout.DP; n > 1 {
		dp := groupRef{&r.groups.DP}
		host := layers.OnHost{Group: dp}
		r.group.DP = &layers.RowGroup{Rank: place.DP, Size: n, Comm: host}
		if init.Device == queue.CUDA {
			places := at.gpus.Places(r.device, place.DP, n, host, dp)
			r.group.DP.Visits, r.neighbours = places, append(r.neighbours, places)
		}
	}
	if init.Layout.EP {
		e := &layers.ExpertGroup{Redundant: init.RedundantExperts}
		e.Share, e.Shares = init.Layout.Experts(init.Rank)
		e.Nodes = init.Layout.ExpertNodes(place.PP, init.Nodes)
		r.group.Experts = e
	}
	if init.Later {
		r.weightBytes, err = model.ReadBytes(cfg, model.Shapes(), r.group, r.stage)
		err = cmp.Or(err, r.loadDraft(progress))
	} else {
		err = r.loadModel(progress)
	}
	if err != nil {
		return err
	}
	if r.output {
		r.grammars = grammars.New(func() (*constrain.Vocabulary, error) {
			return vocabulary(init, r.folder)
		}, 1)
		if init.Constraints > 0 {
			r.grammars.Limit(init.Constraints)
		}
	}
	return r.newCache()
}

// groupRef calls the rank's current group. Layers hold it across groups.
type groupRef struct{ group *join.Group }

// AllReduce implements layers.HostGroup.
func (w groupRef) AllReduce(x []float32) error { return (*w.group).AllReduce(x) }

// AllGather implements layers.HostGroup.
func (w groupRef) AllGather(dst, x []float32) error { return (*w.group).AllGather(dst, x) }

// Gather implements layers.HostGroup.
func (w groupRef) Gather(dst, x []float32, root int) error {
	return (*w.group).Gather(dst, x, root)
}

// AllToAllV implements layers.HostGroup.
func (w groupRef) AllToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) ([]float32, error) {
	return (*w.group).AllToAllV(dst, x, counts, got, meanwhile)
}

// AllToAll implements layers.HostGroup.
func (w groupRef) AllToAll(dst, x []float32, counts, lengths []int) error {
	return (*w.group).AllToAll(dst, x, counts, lengths)
}

// join makes a loaded rank a member of a group, without requests; its cache is unchanged.
func (r *rank) join(opt Options) error {
	init := r.init
	if r.device != nil {
		r.device.Count(r.status.Moved())
	}
	if world := init.Layout.World(); world > 1 && (init.Null == nil || init.Layout.PP > 1) {
		if opt.Groups == nil {
			return fmt.Errorf("rank %d of %d has no way to the others", init.Rank, world)
		}
		var err error
		if r.groups, err = opt.Groups(r.status.Moved()); err != nil {
			return err
		}
	}
	if err := r.connect(opt.Ended); err != nil {
		return err
	}
	if n := init.Null; n != nil {
		r.runner = &null{Null: *n, output: r.output, stages: r.groups.PP,
			stage: init.Layout.Place(init.Rank).PP, last: init.Layout.Sizes().PP - 1}
		return nil
	}
	sampler, _ := r.device.(runner.Sampler) // nil where the host samples
	r.runner = runner.New(runner.Options{Model: r.weights.model, Grammars: r.grammars,
		Pool: r.device.Pool(), Sampler: sampler, Cache: r.cache,
		BlockSize: init.BlockSize, Blocks: init.Blocks, Factors: r.factors,
		States:      init.States,
		DraftStates: init.DraftStates,
		Vocab:       r.vocab, MaxSeqs: init.MaxSeqs, DraftRows: init.DraftRows,
		Draft: r.guessing(), Head: init.Draft != nil && init.Draft.Head(),
		MaxModelLen: init.MaxModelLen, MaxInFlight: init.MaxInFlight, Layout: init.Layout,
		Rank: init.Rank, From: r.stage.From, To: r.stage.To, TP: r.groups.TP, PP: r.groups.PP,
		PCP: r.groups.PCP, DP: r.groups.DP, Status: r.status, Trail: &r.trail})
	return nil
}

// connect has the devices of all ranks meet that are not connected.
func (r *rank) connect(ended <-chan struct{}) error {
	for _, n := range r.neighbours {
		if !n.Asleep() {
			continue
		}
		if err := n.Connect(ended); err != nil {
			return fmt.Errorf("devices of the other ranks: %w", err)
		}
	}
	return nil
}

// leave leaves the group.
func (r *rank) leave() {
	r.teller.set(nil)
	if r.device != nil {
		r.device.Count(nil) // the memory of its status ends with the group
	}
	r.endTransfers()
	for _, n := range r.neighbours {
		n.Leave()
	}
	r.groups.Close()
	if run, ok := r.runner.(*runner.Runner); ok {
		run.Close()
	}
	r.groups, r.runner = join.Groups{}, nil
}

// stageOf returns the layers that the rank has a share of.
func stageOf(init queue.Init, cfg *model.Config) model.Stage {
	from, to := init.Stages.Range(init.Layout.Place(init.Rank).PP, cfg.Layers)
	return model.Stage{From: from, To: to}
}

// modelFolder returns the model files that the group loads, wherever this node has them.
func modelFolder(init queue.Init, progress func(queue.Progress) error) (checkpoint.Folder, error) {
	if init.ModelDir == "" {
		return builtin.Folder(), nil
	}
	return knownFolder(init, init.ModelDir, init.Files, func() (checkpoint.Folder, error) {
		return nodeFolder(init, progress)
	})
}

// knownFolder returns the known files of a folder, or all its files if none are known. The parent
// process may have pinned them too: a headless node.
func knownFolder(init queue.Init, path string, files []queue.File,
	folder func() (checkpoint.Folder, error)) (checkpoint.Folder, error) {
	if files == nil {
		return folder()
	}
	list := make([]checkpoint.File, len(files))
	for i, f := range files {
		list[i] = checkpoint.File(f)
	}
	var holders []int
	if init.Holder != 0 {
		holders = []int{init.Holder, os.Getppid()}
	}
	return checkpoint.Known(path, list, holders, folder), nil
}

// nodeFolder returns the driver's folder where this node has it, else the same snapshot of the Hub
// in this node's cache.
func nodeFolder(init queue.Init, progress func(queue.Progress) error) (checkpoint.Folder, error) {
	_, err := os.Stat(init.ModelDir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return checkpoint.Dir(init.ModelDir)
	}
	if init.Repo == "" {
		host, _ := os.Hostname()
		return nil, fmt.Errorf("model folder %s is not on this node (%s): every node of the "+
			"group needs it under this path", init.ModelDir, host)
	}
	var sent time.Time
	dir, err := hub.Resolve(context.Background(), init.Repo, hub.Options{Revision: init.Revision,
		DownloadDir: init.DownloadDir,
		Progress: func(p hub.Progress) {
			if now := time.Now(); now.Sub(sent) >= progressEvery {
				sent = now
				// A driver that is gone ends this rank another way.
				_ = progress(queue.Progress{Phase: "download " + p.File, Done: p.AllDone,
					Total: p.AllTotal})
			}
		}})
	if err != nil {
		return nil, err
	}
	return checkpoint.Dir(dir)
}

// loadModel loads the rank's share of the model's files, and its draft model.
func (r *rank) loadModel(progress func(queue.Progress) error) error {
	src := model.Dummy(r.init.Seed)
	var total int64
	if r.init.LoadFormat != "dummy" {
		var err error
		if r.weights.checkpoint, err = checkpoint.Open(r.folder); err != nil {
			return err
		}
		r.weights.checkpoint.ReadSparsely()
		src = model.FromCheckpoint(r.weights.checkpoint)
		if total, err = model.ReadBytes(r.config, src, r.group, r.stage); err != nil {
			return err
		}
	}
	var sent time.Time
	var sendErr error
	report := func(done int64) {
		r.weightBytes = done
		if now := time.Now(); sendErr == nil && now.Sub(sent) >= progressEvery {
			sent = now
			sendErr = progress(queue.Progress{Phase: "load", Done: done, Total: total})
		}
	}
	opt := model.Options{Group: r.group, Stage: r.stage, CacheScales: r.scalesCache(),
		Taps: r.taps(), Progress: report}
	if r.weights.packed = r.openPacked(r.packedKey()); r.weights.packed != nil {
		opt.Store = r.weights.packed
	}
	var err error
	r.weights.model, err = model.Load(r.config, wanted{src, &sendErr}, r.device, opt)
	if err != nil {
		return err
	}
	if err := r.loadPredictor(&r.weights, src, false); err != nil {
		return err
	}
	if r.weights.checkpoint != nil {
		if err := r.weights.checkpoint.CheckStable(); err != nil {
			return err
		}
	}
	if err := r.loadDraft(progress); err != nil {
		return err
	}
	r.storePacked(&r.weights)
	return sendErr
}

// wanted is a source that fails once progress could not be reported to the driver.
type wanted struct {
	layers.Source
	err *error
}

func (w wanted) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	if *w.err != nil {
		return checkpoint.Tensor{}, *w.err
	}
	return w.Source.Tensor(name, shape...)
}

func (w wanted) Stored(name string, dtype checkpoint.DType, shape ...int) (checkpoint.Tensor,
	error) {
	if *w.err != nil {
		return checkpoint.Tensor{}, *w.err
	}
	return w.Source.Stored(name, dtype, shape...)
}

// close frees all memory; it is called once, also after a failed load.
func (r *rank) close() {
	if r.grammars != nil {
		r.grammars.Close()
	}
	r.leave() // before the cache is gone that others read
	r.staging.close()
	r.retiring.Wait()
	r.weights.close()
	r.adapters.close()
	r.spare.Drop()
	if r.cache != nil {
		r.cache.Free()
	}
	r.draft.close()
	if r.device != nil {
		r.device.Close()
	}
}
