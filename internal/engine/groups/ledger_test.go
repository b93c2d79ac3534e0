package groups

import (
	"errors"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// plannedLaunch is the built-in model on a machine with so much memory.
func plannedLaunch(t *testing.T, left int64, change func(c *config.Config)) (*Launch, error) {
	t.Helper()
	cfg := config.Default()
	cfg.Parallel.CPUThreads = 1
	change(&cfg)
	spec, err := open.Resolve(t.Context(), open.Options{Config: &cfg, Bounds: func() memory.Bounds {
		return memory.Bounds{{From: "the test's memory", Limit: left, Left: left}}
	}})
	return &Launch{Spec: spec, Ledger: NewLedger()}, err
}

// come has the two ranks of an engine come from hosts that have so much memory.
func come(b *Launch, left ...int64) (queue.Init, error) {
	workers, here := make([]launch.Worker, 2), make([]join.Location, 2)
	for i := range workers {
		host := i % len(left)
		workers[i] = launch.Worker{Rank: i, Node: "10.0.0." + string(rune('1'+host))}
		here[i] = join.Location{Host: "host " + string(rune('1'+host)), Cores: 4,
			Memory: memory.Bounds{{From: "/sys/fs/cgroup/memory.max", Limit: left[host],
				Left: left[host]}}}
	}
	init := queue.Init{Blocks: b.Info.Blocks}
	err := b.fits(&init, workers, here)
	return init, err
}

// TestOtherHostsSizeTheCache makes the KV cache of an engine that is alone as large as the smallest
// of its hosts has room for, the first time only, and of others that are added as large.
func TestOtherHostsSizeTheCache(t *testing.T) {
	b, err := plannedLaunch(t, 1<<40, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "ray", 2
	})
	if err != nil {
		t.Fatal(err)
	}
	wanted := b.Info.Blocks
	first := *b
	init, err := come(&first, 8<<30, 400<<20)
	if err != nil || init.Blocks != first.Info.Blocks || init.Blocks < wanted/10 ||
		init.Blocks > wanted*3/4 || first.Info.CacheBytes != int64(init.Blocks)*b.BlockBytes() {
		t.Fatalf("%d blocks of %d, %v", init.Blocks, wanted, err)
	}
	if again, err := come(&first, 1<<20, 1<<20); err != nil || again.Blocks != init.Blocks {
		t.Errorf("%d blocks instead of %d when it comes again, %v", again.Blocks, init.Blocks, err)
	}
	if b.Ledger.Decided() != int64(init.Blocks) {
		t.Errorf("those that are added have %d blocks, not %d", b.Ledger.Decided(), init.Blocks)
	}
	alone, err := plannedLaunch(t, 1<<40, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "ray", 2
	})
	var mistake *config.UsageError
	if err != nil {
		t.Fatal(err)
	}
	if _, err := come(alone, 100<<20); err == nil || errors.As(err, &mistake) {
		t.Errorf("a host without room for the weights: %v", err)
	}
}

// TestOtherGPUs makes the KV cache as large as the smallest of the GPUs that Ray gave has room for:
// they are counted one by one, and hosts' memory is not.
func TestOtherGPUs(t *testing.T) {
	b, err := plannedLaunch(t, 1<<20, func(c *config.Config) {
		p := &c.Parallel
		p.Device, p.Backend, p.TensorParallelSize = config.CUDA, "ray", 2
		p.Ray.DeviceKey, c.Schedule.MaxNumSeqs = "GPU", 1<<16
		c.Schedule.MaxNumBatchedTokens = 1 << 16
	})
	if err != nil {
		t.Fatal(err)
	}
	come := func(b *Launch, gpus ...memory.Bound) (int, error) {
		workers, here := make([]launch.Worker, 2), make([]join.Location, 2)
		for i := range workers {
			workers[i] = launch.Worker{Rank: i, Node: "10.0.0.1"}
			here[i] = join.Location{Host: "host", Cores: 4}
			if gpus != nil {
				here[i].Memory = memory.Bounds{gpus[i]}
			}
		}
		init := queue.Init{Blocks: b.Info.Blocks}
		err := b.fits(&init, workers, here)
		return init.Blocks, err
	}
	const gib = 1 << 30
	two := []memory.Bound{{From: "GPU 0", Limit: 80 * gib, Left: 79 * gib},
		{From: "GPU 1", Limit: 80 * gib, Left: 10 * gib}}
	first := *b
	blocks, err := come(&first, two...)
	if size := int64(blocks) * b.BlockBytes(); err != nil || size < 5*gib || size > 9*gib {
		t.Errorf("%d bytes of KV cache on a GPU with 10 GiB left, %v", size, err)
	}
	// One GPU for both ranks.
	b.Ledger = NewLedger()
	second := *b
	both, err := come(&second, two[1], two[1])
	if err != nil || both > blocks/2 {
		t.Errorf("%d blocks on a GPU of two ranks, %d of one, %v", both, blocks, err)
	}
	b.Ledger = NewLedger()
	two[1].Left = gib
	third := *b
	if _, err := come(&third, two...); err == nil ||
		!strings.Contains(err.Error(), "10.0.0.1, GPU 1") {
		t.Errorf("a GPU without room: %v", err)
	}
	// What cannot be opened fails when it is loaded, with the reason.
	b.Ledger = NewLedger()
	fourth := *b
	if got, err := come(&fourth); err != nil || got != b.Info.Blocks {
		t.Errorf("%d blocks of %d, %v", got, b.Info.Blocks, err)
	}
}

// TestOtherHosts compares what the ranks on other machines take with what those have, all engines
// together, once they have come, and names the machine.
func TestOtherHosts(t *testing.T) {
	b, err := plannedLaunch(t, 1<<40, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize, c.Cache.MemoryBytes = "ray", 2, 200<<20
	})
	if err != nil {
		t.Fatal(err)
	}
	come := func(engine int, left ...int64) error {
		e := *b
		e.Number = engine
		_, err := come(&e, left...)
		return err
	}
	var refused *open.Refused
	var mistake *config.UsageError
	if err := come(0, 300<<20); !errors.As(err, &mistake) || !errors.As(err, &refused) {
		t.Errorf("a cache that is too large for the host: %v", err)
	}
	if err := come(0, 8<<30, 300<<20); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "1 rank does not fit into the memory of 10.0.0.2") {
		t.Errorf("a small second host: %v", err)
	}
	if err := come(0, 600<<20, 600<<20); err != nil {
		t.Errorf("two hosts: %v", err)
	}
	// It comes again, and has loaded: what is left now says nothing.
	if err := come(0, 1<<20, 1<<20); err != nil {
		t.Errorf("two hosts again: %v", err)
	}
	if err := come(1, 600<<20, 600<<20); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "2 ranks do not fit into the memory of 10.0.0.") {
		t.Errorf("another engine on the same hosts: %v", err)
	}
	b.Ledger.Release(0)
	if err := come(1, 600<<20, 600<<20); err != nil {
		t.Errorf("another engine in the place of the first: %v", err)
	}
}
