package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
)

// OverNodes surveys the nodes of --nnodes: this one is node 0, and the others come to it, where the
// doctor was started with --headless. It tells them whether a group follows: where start says so,
// and no check fails.
func OverNodes(ctx context.Context, c *config.Config, version string, start bool,
	log *slog.Logger) (*Found, error) {
	n := &c.Parallel.Nodes
	token, err := nodes.ReadToken(n.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--cluster-token-file: %w", err)
	}
	listener, err := handshake.Listen(handshake.Options{Instance: surveyed, Token: token,
		World: n.Count, TCP: n.Address(), Log: discard(log)})
	if err != nil {
		return nil, fmt.Errorf("--master-addr %s --master-port %d: %w", n.Master, n.MasterPort, err)
	}
	defer listener.Close()
	own := &agent{address: n.Master, version: version, token: token, machine: ThisMachine()}
	defer own.end()
	s := newGathering(own, n.Count)
	for i := range s.nodes {
		s.nodes[i].Name = fmt.Sprintf("node %d", i)
	}
	s.gather(ctx, listener, n.Timeout, nil, log)
	survey(ctx, s.nodes, s.askers, question(c), c.Queue.PortRange)
	found := &Found{Nodes: s.nodes}
	failed, _ := Failed(found.Results(c))
	s.end(start && failed == 0)
	return found, nil
}

// question is what nodes are asked for a configuration.
func question(c *config.Config) Question {
	q := Question{Model: c.Model.Path, Revision: c.Model.Revision,
		DownloadDir: c.Model.DownloadDir}
	if info, err := os.Stat(q.Model); err == nil && info.IsDir() {
		q.Model = absolute(q.Model) // another node has another current folder
	}
	return q
}

// gathering are the nodes that come to this one.
type gathering struct {
	nodes  []Node
	askers []asker
	conns  []net.Conn
}

func newGathering(own *agent, count int) *gathering {
	s := &gathering{nodes: make([]Node, count), askers: make([]asker, count)}
	s.askers[0] = own
	for i := 1; i < count; i++ {
		s.nodes[i].Lost = errNotCome
	}
	return s
}

var errNotCome = errors.New("it has not come")

// gather waits until all nodes are there, or the time is over, or none is left to wait for. ended
// tells of those that will not come; nil is not called.
func (s *gathering) gather(ctx context.Context, l *handshake.Listener, timeout time.Duration,
	ended <-chan ray.Exit, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	came := make(chan *handshake.Conn)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				return
			}
			select {
			case came <- conn:
			case <-ctx.Done():
				conn.Close()
				return
			}
		}
	})
	defer accepting.Wait()
	defer cancel()
	for missing := s.missing(); missing > 0; missing = s.missing() {
		discard(log).Info("waiting for nodes", "missing", missing)
		select {
		case conn := <-came:
			i := conn.Peer.Rank
			if i == 0 || s.askers[i] != nil {
				conn.Close()
				continue
			}
			s.conns = append(s.conns, conn)
			s.askers[i], s.nodes[i].Lost = &remote{conn}, nil
		case x, more := <-ended:
			if !more {
				return
			}
			if errors.Is(s.nodes[x.Rank].Lost, errNotCome) {
				s.nodes[x.Rank].Lost = errors.New(last(x))
			}
		case <-ctx.Done():
			return
		}
	}
}

// missing is how many nodes may still come.
func (s *gathering) missing() int {
	n := 0
	for _, node := range s.nodes {
		if errors.Is(node.Lost, errNotCome) {
			n++
		}
	}
	return n
}

// end ends the survey at all nodes; group says that they are to run ranks then.
func (s *gathering) end(group bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	for i, a := range s.askers {
		if r, there := a.(*remote); there && s.nodes[i].Lost == nil {
			_, _ = r.ask(ctx, order{End: true, Group: group}) // one that has gone has ended
		}
	}
	for _, c := range s.conns {
		c.Close()
	}
}

// redial is how long a node waits before it tries again to reach node 0; it says so with one try in
// wordEvery.
const (
	redial    = 500 * time.Millisecond
	wordEvery = 20
)

// Headless has a node of --nnodes surveyed by node 0, which may come later. It says whether node 0
// starts a group now.
func Headless(ctx context.Context, c *config.Config, version string,
	log *slog.Logger) (group bool, err error) {
	n := &c.Parallel.Nodes
	token, err := nodes.ReadToken(n.TokenFile)
	if err != nil {
		return false, &config.UsageError{Err: fmt.Errorf("--cluster-token-file: %w", err)}
	}
	conn, err := dialZero(ctx, n, token, log)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	own, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return false, err
	}
	a := &agent{node: n.Rank, address: own, version: version, token: token, machine: ThisMachine()}
	return a.serve(ctx, conn)
}

func dialZero(ctx context.Context, n *config.Nodes, token handshake.Token,
	log *slog.Logger) (*handshake.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	e := handshake.Endpoint{Instance: surveyed, TCP: n.Address(), Unpinned: true}
	for tries := 0; ; tries++ {
		try, done := context.WithTimeout(ctx, contactTimeout)
		conn, err := handshake.Dial(try, e, token, handshake.Identity{Rank: n.Rank,
			PID: os.Getpid()})
		done()
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, handshake.BadToken):
			return nil, fmt.Errorf("--cluster-token-file: node 0 at %s has another token", e.TCP)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("node 0 was not reached at %s within %v "+
				"(--distributed-timeout-seconds): %w", e.TCP, n.Timeout, err)
		}
		if tries%wordEvery == 0 {
			discard(log).Info("waiting for node 0", "address", e.TCP, "last_try", err.Error())
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
	}
}
