package groups

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

// Cluster is shared by the groups of all engines. On Ray it has the cluster's address and a count
// of the ranks on each node; each engine joins the cluster by itself, with a placement group of its
// own. Without Ray it has the other nodes.
type Cluster struct {
	Census *rayactor.Census
	nodes  *nodes.Cluster

	mu      sync.Mutex
	address string
	// startedHere says that a single engine has started the cluster, which ends with it.
	startedHere bool
	// owner joins the cluster, or starts one here, before the engines do, and leaves it after them;
	// nil when the address was given. Without Ray it is nodes.
	owner interface {
		Stop(ctx context.Context, cause error) error
	}
	// Engines counts the engines that have not stopped.
	Engines atomic.Int64
}

// OpenCluster joins or starts the cluster of several engines on Ray, or listens for other nodes.
func (b *Launch) OpenCluster() error {
	if b.Config.Parallel.Nodes.Count > 1 {
		return b.listenForNodes()
	}
	if b.Backend() != "ray" {
		return nil
	}
	b.Cluster = &Cluster{address: b.Config.Parallel.Ray.Address, Census: rayactor.NewCensus(0)}
	b.Cluster.Engines.Store(int64(b.Engines()))
	if b.Engines() == 1 {
		return nil
	}
	for i := range b.Engines() {
		b.Cluster.Register(i)
	}
	if b.Cluster.address != "" {
		return nil
	}
	o := b.rayOptions()
	o.Ray.BundleIndices, o.Samples = "", nil
	l, err := rayactor.Connect(b.Context, o)
	if err != nil {
		return err
	}
	b.Cluster.owner, b.Cluster.address = l, l.ClusterAddress()
	return nil
}

// setAddress records the cluster that the first engine has joined or started.
func (c *Cluster) setAddress(l *rayactor.Launcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.address == "" {
		c.address, c.startedHere = l.ClusterAddress(), l.StartedCluster()
	}
}

// At returns the cluster's address, and whether the cluster ends with the first engine.
func (c *Cluster) At() (address string, startedHere bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.address, c.startedHere
}

// Register enters an engine that will be placed.
func (c *Cluster) Register(engine int) {
	if c.Census != nil {
		c.Census.Register(engine)
	}
}

// group returns the group of an engine on several nodes.
func (b *Launch) group(engine int) nodes.Group {
	return nodes.Group{Number: engine, Slots: b.Slots, Share: b.Share}
}

// Release removes an engine that has stopped, with the cause if it has failed. The last release
// leaves the cluster.
func (c *Cluster) Release(ctx context.Context, cause error) error {
	if c == nil || c.Engines.Add(-1) > 0 || c.owner == nil {
		return nil
	}
	return c.owner.Stop(ctx, cause)
}

// ownBundles are the bundles of this engine among those of --bundle-indices, which lists them
// engine by engine.
func (b *Launch) ownBundles(indices string) (string, error) {
	if indices == "" || b.Engines() == 1 {
		return indices, nil
	}
	all := strings.Split(indices, ",")
	if len(all) != b.Ranks*b.Engines() {
		return "", &config.UsageError{Err: fmt.Errorf("--bundle-indices %s: %d bundles for %d "+
			"engines of %d ranks", indices, len(all), b.Engines(), b.Ranks)}
	}
	for i, x := range all {
		if slices.Contains(all[:i], x) {
			return "", &config.UsageError{Err: fmt.Errorf("--bundle-indices %s: bundle %s is "+
				"there twice", indices, x)}
		}
	}
	return strings.Join(all[b.Number*b.Ranks:(b.Number+1)*b.Ranks], ","), nil
}
