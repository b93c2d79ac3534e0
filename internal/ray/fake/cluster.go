// Package fake is a Ray cluster without Ray, for tests: its bridges speak the frames of the real
// one over an in-memory connection (ray.Options.Conn), and the test scripts what the cluster has,
// refuses and loses.
//
// It is proven: TestFacts of test/ray checks every fact about Ray that the launcher relies on, on
// this cluster and on real ones. It works in a synctest bubble unless workers are processes
// (Process).
package fake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
	"golang.org/x/sys/unix"
)

// Cluster is the scripted cluster. The fields may be set until the first Dial.
type Cluster struct {
	// Ray and Python are the versions that bridges report.
	Ray, Python string
	// HelloError makes bridges report that Ray cannot be imported.
	HelloError *frame.Fault
	// Token, if not empty, is the token that the cluster wants.
	Token string
	// Worker starts what stands for worker processes; nil is a worker that waits for a signal.
	Worker StartFunc
	// Dir is where nodes keep installed files; in an empty one nothing is read or written, and
	// paths are made up.
	Dir string
	// Settle is how long after its removal the resources of a group come back.
	Settle time.Duration

	mu     sync.Mutex
	nodes  []*node
	groups map[string]*group
	order  []string
	fails  map[string][]*frame.Fault
	before map[string][]func()
	after  map[string][]func()
	refuse map[int]*frame.Fault
	hold   map[int]bool
	binary map[string]string
	envs   map[string]map[string]string
	// outside is what others hold outside groups: no node shows it.
	outside map[string]float64
	jobs    []*job
	samples []ray.Sample
	pids    int
	// changed is closed and replaced whenever something happened that a waiting operation may be
	// waiting for.
	changed chan struct{}

	running sync.WaitGroup
}

type node struct {
	ray.Node
	// devices holds what is free of each device, by resource key and number.
	devices map[string][]float64
	// outside is what actors without a group hold.
	outside map[string]float64
	// crashed says that its raylet has ended, also when Ray does not know yet.
	crashed bool
}

type group struct {
	ray.Group
	owner     *job
	namespace string
	// taken is what actors use of each bundle.
	taken []map[string]float64
}

type actor struct {
	spec   ray.ActorSpec
	job    *job
	facts  ray.Facts
	ids    map[string][]int
	placed bool
	dead   *frame.Fault
	// worker is the worker that runs under it, nil if none does.
	worker *Worker
}

// New makes a cluster of nodes that are alive; the first is the driver's. Each node also has one
// of the resource that stands for it ("node:10.0.0.1"), as with Ray. Free is ignored.
func New(nodes ...ray.Node) *Cluster {
	c := &Cluster{Ray: "2.60.0", Python: "3.11.7", groups: map[string]*group{},
		fails:  map[string][]*frame.Fault{},
		before: map[string][]func(){}, after: map[string][]func(){}, refuse: map[int]*frame.Fault{},
		hold: map[int]bool{}, binary: map[string]string{}, pids: 1000,
		envs:    map[string]map[string]string{},
		changed: make(chan struct{})}
	for _, n := range nodes {
		c.AddNode(n)
	}
	return c
}

// AddNode joins one more node.
func (c *Cluster) AddNode(n ray.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Alive = true
	n.Resources = maps.Clone(n.Resources)
	n.Resources["node:"+n.IP] = 1
	f := &node{Node: n, devices: map[string][]float64{}, outside: map[string]float64{}}
	f.Free = maps.Clone(n.Resources)
	for key, amount := range n.Resources {
		f.devices[key] = slices.Repeat([]float64{1}, int(amount))
	}
	c.nodes = append(c.nodes, f)
	c.notify()
}

// Address is the address of the cluster's GCS, on its first node.
func (c *Cluster) Address() string { return c.nodes[0].IP + gcsPort }

const gcsPort = ":6379"

// Start is ray.Start with a bridge to this cluster. The job has the token that is in the
// environment.
func (c *Cluster) Start(ctx context.Context, o ray.Options) (*ray.Client, error) {
	o.Conn = c.dial(tokenOf(o.Env))
	return ray.Start(ctx, o)
}

// Dial starts a bridge, which is one job, and returns the engine's end of its connection. The job
// ends with it.
func (c *Cluster) Dial() net.Conn { return c.dial("") }

func (c *Cluster) dial(token string) net.Conn {
	ours, theirs := net.Pipe()
	c.mu.Lock()
	j := &job{cluster: c, conn: theirs, token: token, id: fmt.Sprintf("%02x000000", len(c.jobs)+1),
		actors: map[int]*actor{}, calls: map[int64]context.CancelFunc{}, known: map[string]bool{},
		out: make(chan frame.Reply, outgoing)}
	c.jobs = append(c.jobs, j)
	c.mu.Unlock()
	c.running.Go(j.serve)
	return ours
}

// Wait returns when all bridges and workers have ended; their connections must be closed before.
func (c *Cluster) Wait() { c.running.Wait() }

// FailNext makes the next call of an operation ("connect", "group_create", …) fail.
func (c *Cluster) FailNext(op string, fault frame.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails[op] = append(c.fails[op], &fault)
}

// Before calls do when the next call of an operation has come, before it is performed.
func (c *Cluster) Before(op string, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before[op] = append(c.before[op], do)
}

// After calls do when the next call of an operation has been performed, before it is answered.
func (c *Cluster) After(op string, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after[op] = append(c.after[op], do)
}

// hook calls the next function of a list without the lock.
func (c *Cluster) hook(of map[string][]func(), op string) {
	if list := of[op]; len(list) > 0 {
		of[op] = list[1:]
		c.mu.Unlock()
		defer c.mu.Lock()
		list[0]()
	}
}

// RefuseActor makes actors of the rank die as they start.
func (c *Cluster) RefuseActor(rank int, fault frame.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[rank] = &fault
}

// BlockActor keeps actors of the rank pending, or lets them start.
func (c *Cluster) BlockActor(rank int, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold[rank] = held
	c.notify()
}

// SetBinary makes a node have a file with the hash at the path.
func (c *Cluster) SetBinary(nodeID, sha256Hex, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.binary[nodeID+sha256Hex] = path
}

// SetNodeEnv sets the environment that a node's actors have.
func (c *Cluster) SetNodeEnv(nodeID string, env map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.envs[nodeID] = maps.Clone(env)
}

// AddGroup adds a placed group of another job in a namespace, which may be adopted, and returns
// its id. Bundles need their nodes.
func (c *Cluster) AddGroup(namespace string, g ray.Group) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.ID = c.newID()
	g.State, g.SchedulingState = ray.GroupCreated, "FINISHED"
	f := &group{Group: g, namespace: namespace}
	for i, b := range g.Bundles {
		f.Bundles[i].Index = i
		f.taken = append(f.taken, map[string]float64{})
		if n := c.node(b.NodeID); n != nil {
			subtract(n.Free, b.Resources)
		}
	}
	c.groups[g.ID] = f
	c.order = append(c.order, g.ID)
	return g.ID
}

// ReserveOutside reserves resources outside groups: they are missing on the whole cluster, but on
// no node.
func (c *Cluster) ReserveOutside(resources map[string]float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outside = maps.Clone(resources)
}

// RemoveGroup removes a group, as its owner's end would; its actors die.
func (c *Cluster) RemoveGroup(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(id)
}

// CrashNode ends the raylet of a node, and its actors: but until KillNode Ray does not know. Its
// groups are as they were, and Ray goes on to choose the node for bundles, in vain.
func (c *Cluster) CrashNode(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node(id).crashed = true
	c.loseActorsOf(id, &frame.Fault{Class: "ActorUnavailableError",
		Message: "The actor is temporarily unavailable: RpcError: Socket closed"})
}

func (c *Cluster) loseActorsOf(id string, fault *frame.Fault) {
	for _, j := range c.jobs {
		for _, a := range j.actors {
			if a.facts.NodeID == id && a.placed {
				c.lose(a, fault)
			}
		}
	}
}

// KillNode ends a node: actors there die, groups with bundles there are rescheduling.
func (c *Cluster) KillNode(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.node(id)
	if n == nil {
		return
	}
	n.Alive, n.Resources, n.Free, n.crashed = false, nil, nil, true
	c.loseActorsOf(id, &frame.Fault{Class: "ActorDiedError",
		Message: "The actor died because its node has died."})
	for _, g := range c.groups {
		for i := range g.Bundles {
			if g.Bundles[i].NodeID == id && g.State == ray.GroupCreated {
				g.State, g.Bundles[i].NodeID = ray.GroupRescheduling, ""
			}
		}
	}
	c.notify()
}

// EndWorker ends the worker of a rank of the latest job, with the exit that the engine is told.
func (c *Cluster) EndWorker(rank int, exit ray.Exit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.latest(rank); a != nil && a.worker != nil {
		w := a.end()
		a.job.tell(a, w, exit)
	}
}

// LoseActor ends the actor of a rank of the latest job, its worker with it.
func (c *Cluster) LoseActor(rank int, fault frame.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.latest(rank); a != nil {
		c.lose(a, &fault)
	}
}

// SignalActor sends SIGKILL or SIGTERM to the process of an actor; both end it.
func (c *Cluster) SignalActor(actorID string, s unix.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		for _, a := range j.actors {
			if a.facts.ActorID == actorID {
				c.lose(a, &frame.Fault{Class: "ActorDiedError",
					Message: "The actor died unexpectedly before finishing " +
						"this task: the worker process died by " + unix.SignalName(s)})
			}
		}
	}
}

// SignalActorOf is SignalActor for the actor of a worker's process; false means that none has it.
func (c *Cluster) SignalActorOf(worker int, s unix.Signal) bool {
	c.mu.Lock()
	id := ""
	for _, j := range c.jobs {
		for _, a := range j.actors {
			if a.worker != nil && a.worker.PID == worker {
				id = a.facts.ActorID
			}
		}
	}
	c.mu.Unlock()
	c.SignalActor(id, s)
	return id != ""
}

// KillNamed ends the actor with a name, as ray.kill of another job does.
func (c *Cluster) KillNamed(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.named(namespace, name); a != nil {
		c.lose(a, &frame.Fault{Class: "ActorDiedError", Message: killedByRay})
	}
}

// killedByRay is what Ray says of an actor that was ended by ray.kill.
const killedByRay = "The actor is dead because it was killed by `ray.kill`."

// named finds the living actor with a name.
func (c *Cluster) named(namespace, name string) *actor {
	for _, j := range c.jobs {
		for _, a := range j.actors {
			if name != "" && a.spec.Name == name && j.namespace == namespace && a.dead == nil {
				return a
			}
		}
	}
	return nil
}

// Drop ends the latest bridge, as a crash would.
func (c *Cluster) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs[len(c.jobs)-1].conn.Close()
}

// Silence makes the latest bridge say nothing any more, with its connection open.
func (c *Cluster) Silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs[len(c.jobs)-1].silent = true
}

// Nodes returns the nodes that are alive.
func (c *Cluster) Nodes() (alive []ray.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.Alive {
			alive = append(alive, n.Node)
		}
	}
	return alive
}

// Groups returns the groups that are not removed, in the order of their creation.
func (c *Cluster) Groups() []ray.Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []ray.Group
	for _, id := range c.order {
		if g := c.groups[id]; g.State != ray.GroupRemoved {
			all = append(all, g.clone())
		}
	}
	return all
}

// Actors returns the specs of all living actors, in the order of jobs and ranks.
func (c *Cluster) Actors() []ray.ActorSpec {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []ray.ActorSpec
	for _, j := range c.jobs {
		for _, rank := range slices.Sorted(maps.Keys(j.actors)) {
			if a := j.actors[rank]; a.dead == nil {
				all = append(all, a.spec)
			}
		}
	}
	return all
}

func (c *Cluster) newID() string { return fmt.Sprintf("%036x", len(c.order)+1) }

func (c *Cluster) node(id string) *node {
	for _, n := range c.nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

func (c *Cluster) latest(rank int) *actor {
	if len(c.jobs) == 0 {
		return nil
	}
	return c.jobs[len(c.jobs)-1].actors[rank]
}

// lose ends an actor and its worker; the run reference of a worker that had not ended becomes an
// exception.
func (c *Cluster) lose(a *actor, fault *frame.Fault) {
	if a.dead != nil {
		return
	}
	a.dead = fault
	c.release(a)
	if a.worker != nil {
		w := a.end()
		a.job.tell(a, w, ray.Exit{Class: fault.Class, Reason: fault.Message})
	}
	c.notify()
}

// remove takes a group out and ends its actors.
func (c *Cluster) remove(id string) {
	g := c.groups[id]
	if g == nil || g.State == ray.GroupRemoved {
		return
	}
	g.State = ray.GroupRemoved
	for _, j := range c.jobs {
		for _, a := range j.actors {
			if a.spec.Group == id {
				c.lose(a, &frame.Fault{Class: "ActorDiedError",
					Message: "The actor is dead because its placement group was removed."})
			}
		}
	}
	if c.Settle > 0 {
		c.running.Go(func() {
			time.Sleep(c.Settle)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.releaseGroup(g)
		})
	} else {
		c.releaseGroup(g)
	}
	c.notify()
}

// releaseGroup releases the resources of a removed group on its nodes.
func (c *Cluster) releaseGroup(g *group) {
	for i := range g.Bundles {
		if n := c.node(g.Bundles[i].NodeID); n != nil && n.Alive {
			add(n.Free, g.Bundles[i].Resources)
		}
	}
	c.notify()
}

// Samples are the metrics shown last.
func (c *Cluster) Samples() []ray.Sample {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.samples)
}

func (c *Cluster) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// await waits, without the lock, for a change; false is that ctx has ended or one of the times
// has come. A time that is nil does not come.
func (c *Cluster) await(ctx context.Context, until ...<-chan time.Time) bool {
	until = append(until, nil, nil)
	changed := c.changed
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-changed:
		return true
	case <-until[0]:
	case <-until[1]:
	case <-ctx.Done():
	}
	return false
}

func (g *group) clone() ray.Group {
	out := g.Group
	out.Bundles = slices.Clone(g.Bundles)
	return out
}
