package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// cluster is what the groups of all engines have in common: on Ray the cluster's address, and who
// computes on which node; each engine joins the cluster by itself, with a placement group of its
// own. Without Ray, the other nodes.
type cluster struct {
	census *rayactor.Census
	nodes  *nodes.Cluster

	mu      sync.Mutex
	address string
	// startedHere says that a single engine has started the cluster, which ends with it.
	startedHere bool
	// holder has joined the cluster, or started it here when there was none, before the engines do,
	// and leaves it after them; nil when the address was given. Without Ray it is nodes.
	holder interface {
		Stop(ctx context.Context, cause error) error
	}
	// engines counts those that have not stopped.
	engines atomic.Int64
}

// holdCluster finds the cluster of several engines on Ray, or lets other nodes come.
func (b *launching) holdCluster() error {
	if b.cfg.Parallel.Nodes.Count > 1 {
		return b.listenForNodes()
	}
	if b.backend() != "ray" {
		return nil
	}
	b.cluster = &cluster{address: b.cfg.Parallel.Ray.Address, census: rayactor.NewCensus(0)}
	b.cluster.engines.Store(int64(b.engines()))
	if b.engines() == 1 {
		return nil
	}
	for i := range b.engines() {
		b.cluster.expect(i)
	}
	if b.cluster.address != "" {
		return nil
	}
	o := b.rayOptions()
	o.Ray.BundleIndices, o.Samples = "", nil
	l, err := rayactor.Connect(b.ctx, o)
	if err != nil {
		return err
	}
	b.cluster.holder, b.cluster.address = l, l.ClusterAddress()
	return nil
}

// joined takes note of the cluster that the first engine has found, or started.
func (c *cluster) joined(l *rayactor.Launcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.address == "" {
		c.address, c.startedHere = l.ClusterAddress(), l.StartedCluster()
	}
}

// at is the cluster's address, and whether it ends with the first engine.
func (c *cluster) at() (address string, startedHere bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.address, c.startedHere
}

// expect says that an engine will be placed.
func (c *cluster) expect(engine int) {
	if c.census != nil {
		c.census.Expect(engine)
	}
}

// group is the one of an engine on several nodes.
func (b *launching) group(engine int) nodes.Group {
	return nodes.Group{Number: engine, Ranks: b.ranks, Share: b.share}
}

// leave is called by each engine once it has stopped, with the cause if it has failed. The last one
// leaves the cluster.
func (c *cluster) leave(ctx context.Context, cause error) error {
	if c == nil || c.engines.Add(-1) > 0 || c.holder == nil {
		return nil
	}
	return c.holder.Stop(ctx, cause)
}

// ownBundles are the bundles of this engine among those of --bundle-indices, which lists them
// engine by engine.
func (b *launching) ownBundles(indices string) (string, error) {
	if indices == "" || b.engines() == 1 {
		return indices, nil
	}
	all := strings.Split(indices, ",")
	if len(all) != b.ranks*b.engines() {
		return "", &config.UsageError{Err: fmt.Errorf("--bundle-indices %s: %d bundles for %d engines "+
			"of %d ranks", indices, len(all), b.engines(), b.ranks)}
	}
	for i, x := range all {
		if slices.Contains(all[:i], x) {
			return "", &config.UsageError{Err: fmt.Errorf("--bundle-indices %s: bundle %s is there twice",
				indices, x)}
		}
	}
	return strings.Join(all[b.number*b.ranks:(b.number+1)*b.ranks], ","), nil
}
