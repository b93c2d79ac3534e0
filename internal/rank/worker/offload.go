package worker

import (
	"context"
	"fmt"

	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/offload"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// endOffload closes the rank's folder.
func (r *rank) endOffload() {
	if r.offload != nil {
		r.offload.Close()
		r.offload = nil
	}
}

// openFolder opens the folder of the rank's blocks. That it cannot is an answer, not a failure.
func (w *worker) openFolder(o offload.Open) (opened offload.Opened, err error) {
	r := w.rank
	r.endOffload()
	if r.cache == nil {
		return opened, fmt.Errorf("rank %d has no cache", w.opt.Rank)
	}
	opt := offload.Options{Open: o, Rank: w.opt.Rank, Memory: r.cache, Blocks: r.init.Blocks}
	if opt.Program, err = machine.Program(); err == nil {
		r.offload, err = offload.New(opt)
	}
	if err != nil {
		return offload.Opened{Error: err.Error()}, nil
	}
	return r.offload.Opened(), nil
}

// theFolder is the rank's.
func (w *worker) theFolder() (*offload.Folder, error) {
	if w.rank.offload == nil {
		return nil, fmt.Errorf("rank %d stores no blocks", w.opt.Rank)
	}
	return w.rank.offload, nil
}

// quietFolder is the rank's, once the device is done with all plans before: files do not wait for
// what it has been asked for.
func (w *worker) quietFolder() (*offload.Folder, error) {
	if err := w.rank.device.Finish(); err != nil {
		return nil, err
	}
	return w.theFolder()
}

// removeStored removes the files of blocks.
func (w *worker) removeStored(rpc.None) (none rpc.None, err error) {
	f, err := w.theFolder()
	if err == nil {
		err = f.Remove()
	}
	return none, err
}

// load fills blocks from files.
func load(f *offload.Folder, b offload.Blocks) (func(context.Context) offload.Done, error) {
	return func(ctx context.Context) offload.Done { return f.Load(ctx, &b) }, nil
}

// store writes blocks to files.
func store(f *offload.Folder, b offload.Blocks) (func(context.Context) offload.Done, error) {
	return func(ctx context.Context) offload.Done { return f.Store(ctx, &b) }, nil
}
