package doctor

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
)

// invitation is what a node's process is given on its standard input.
type invitation struct {
	Endpoint handshake.Endpoint `json:"endpoint"`
	Token    string             `json:"token"`
	Node     int                `json:"node"`
	// Address is where the others reach the node.
	Address string `json:"address"`
	Version string `json:"version"`
}

// ActorFlag has the verb doctor serve a survey as the child of an actor.
const ActorFlag = "--in-actor"

// The bounds of what Ray takes to start actors, and they the program.
const (
	connectTimeout = 2 * time.Minute
	actorTimeout   = time.Minute
	leaveTimeout   = 10 * time.Second
)

// overRay is a survey of a cluster.
type overRay struct {
	cfg     *config.Config
	version string
	log     *slog.Logger
	client  *ray.Client
	cluster ray.Cluster
	token   handshake.Token
	*gathering
	// nodes of Ray by number; that of 0 is this machine's.
	members []ray.Node
}

// OverRay surveys the nodes of a Ray cluster on which ranks could be placed, and this machine. An
// actor on each starts this program, which does as a rank would. start starts the bridge.
func OverRay(ctx context.Context, c *config.Config, version string, log *slog.Logger,
	start func(context.Context, ray.Options) (*ray.Client, error)) (*Found, error) {
	r := &c.Parallel.Ray
	s := &overRay{cfg: c, version: version, log: discard(log), token: handshake.NewToken()}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var err error
	if s.client, err = start(connecting, ray.Options{Python: r.Python, Env: os.Environ(),
		Log: s.log}); err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		_ = s.client.Close(ctx) // the bridge is killed then
	}()
	s.cluster, err = s.client.Connect(connecting, ray.ConnectOptions{Address: r.Address,
		Namespace: r.Namespace, NodeIP: r.NodeIP})
	if err != nil {
		return nil, err
	}
	return s.survey(ctx)
}

func (s *overRay) survey(ctx context.Context) (*Found, error) {
	all, err := s.client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	address := s.cluster.NodeIP
	if ip := s.cfg.Parallel.Ray.NodeIP; ip != "" {
		address = ip
	}
	s.choose(all)
	own := &agent{address: address, version: s.version, token: s.token, machine: ThisMachine()}
	defer own.end()
	listener, err := handshake.Listen(handshake.Options{Instance: surveyed, Token: s.token,
		World: len(s.members), Shared: true, TCP: address, PortRange: s.cfg.Queue.PortRange,
		Log: s.log})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	defer listener.Close() // again, when the survey got so far
	s.gathering = newGathering(own, len(s.members))
	defer s.end(false)
	for i, m := range s.members {
		s.nodes[i].Name = m.IP
		s.nodes[i].Ray = &RayFacts{Devices: m.Resources[s.cfg.Parallel.Ray.DeviceKey]}
	}
	hello := s.client.Hello()
	s.nodes[0].Name += " (here)"
	s.nodes[0].Ray.Ray, s.nodes[0].Ray.Python = hello.Ray, hello.Python
	s.start(ctx, listener.Endpoint())
	s.gather(ctx, listener, actorTimeout, s.client.Exits(), s.log)
	own.serveOn(listener) // ranks come to the driver at one port
	survey(ctx, s.nodes, s.askers, question(s.cfg), s.cfg.Queue.PortRange)
	return &Found{Nodes: s.nodes, Ray: hello.Ray, Python: hello.Python}, nil
}

// choose lists this machine's node, and those that have what ranks take.
func (s *overRay) choose(all []ray.Node) {
	here := ray.Node{ID: s.cluster.NodeID, IP: s.cluster.NodeIP}
	var others []ray.Node
	for _, n := range all {
		switch {
		case !n.Alive:
		case n.ID == s.cluster.NodeID:
			here = n
		case n.Resources[s.cfg.Parallel.Ray.DeviceKey] > 0:
			others = append(others, n)
		}
	}
	s.members = append([]ray.Node{here}, others...)
}

// nodeShare is the least amount of a node's own resource, of which Ray gives each node one.
const nodeShare = 0.001

// start starts this program on every other node.
func (s *overRay) start(ctx context.Context, e handshake.Endpoint) {
	ctx, cancel := context.WithTimeout(ctx, actorTimeout)
	defer cancel()
	var specs []ray.ActorSpec
	for i, m := range s.members[1:] {
		specs = append(specs, ray.ActorSpec{Rank: 1 + i,
			Resources: map[string]float64{"node:" + m.IP: nodeShare}})
	}
	s.fail(s.client.CreateActors(ctx, specs))
	sum, err := join.BinaryHash()
	if err != nil {
		s.fail(err)
		return
	}
	program := hex.EncodeToString(sum[:])
	self, _ := os.Executable() // only a hint
	facts, err := s.client.Facts(ctx, s.pending(),
		ray.FactsRequest{SHA256: program, CacheHint: self})
	s.fail(err)
	paths := map[int]string{}
	var lacking []int
	for _, f := range facts {
		s.nodes[f.Rank].Ray.Ray, s.nodes[f.Rank].Ray.Python = f.Ray, f.Python
		if paths[f.Rank] = f.HasBinary; f.HasBinary == "" {
			lacking = append(lacking, f.Rank)
		}
	}
	if len(lacking) > 0 {
		// The bridge reads it: its own /proc/self is Python.
		installed, err := s.client.Install(ctx, lacking, fmt.Sprintf("/proc/%d/exe", os.Getpid()),
			program)
		s.fail(err)
		for _, i := range installed {
			paths[i.Rank] = i.Path
		}
	}
	env := rayactor.Environment(os.Environ(),
		rayactor.EnvOptions{Allow: s.cfg.Parallel.Ray.EnvAllow, Model: s.cfg.Model.Path})
	var starts []ray.StartSpec
	for _, i := range s.pending() {
		text, err := json.Marshal(invitation{Endpoint: e, Token: s.token.Reveal(), Node: i,
			Address: s.members[i].IP, Version: s.version})
		if err != nil {
			s.fail(err)
			return
		}
		starts = append(starts, ray.StartSpec{Rank: i, Path: paths[i],
			Args: []string{"doctor", ActorFlag}, DefaultEnv: env.Send, Stdin: append(text, '\n')})
	}
	_, err = s.client.StartWorkers(ctx, starts)
	s.fail(err)
}

// pending are the nodes that may still come.
func (s *overRay) pending() []int {
	var list []int
	for i, n := range s.nodes {
		if errors.Is(n.Lost, errNotCome) {
			list = append(list, i)
		}
	}
	return list
}

// fail notes for which nodes something failed: those it names, or all that have not come.
func (s *overRay) fail(err error) {
	var each ray.RankErrors
	switch {
	case err == nil:
	case errors.As(err, &each):
		for i, err := range each {
			s.nodes[i].Lost = err
		}
	default:
		for _, i := range s.pending() {
			s.nodes[i].Lost = err
		}
	}
}

// last is what a process that ended said at last, or how it ended.
func last(x ray.Exit) string {
	for i := len(x.Stderr) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(x.Stderr[i]); line != "" {
			return line
		}
	}
	if x.Reason != "" {
		return x.Reason
	}
	return "its process has ended " + x.Signal
}

// InActor is the side of a node of Ray: a child of an actor, which writes the invitation to its
// standard input and keeps that open: when the input ends, so does this.
func InActor(ctx context.Context, input io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := bufio.NewReader(input)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no invitation: this flag is used by eagleray itself: %w", err)
	}
	var inv invitation
	if err := json.Unmarshal(line, &inv); err != nil {
		return fmt.Errorf("read invitation: %w", err)
	}
	token, err := handshake.ParseToken(inv.Token)
	if err != nil {
		return err
	}
	// It ends with the process.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	dialling, done := context.WithTimeout(ctx, contactTimeout)
	defer done()
	conn, err := handshake.Dial(dialling, inv.Endpoint, token,
		handshake.Identity{Rank: inv.Node, PID: os.Getpid()})
	if err != nil {
		return fmt.Errorf("%s → %s: %s", inv.Address, inv.Endpoint.TCP, reason(err))
	}
	defer conn.Close()
	a := &agent{node: inv.Node, address: inv.Address, version: inv.Version, token: token,
		machine: ThisMachine()}
	_, err = a.serve(ctx, conn)
	return err
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
