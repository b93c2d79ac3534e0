package doctor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// Node is what was found out of one.
type Node struct {
	// Name is its number, or address, for people.
	Name  string
	Facts Facts
	// Skew is how far its clock is ahead of node 0's, known to half of Trip.
	Skew, Trip time.Duration
	// Ray is what Ray says of it; nil without Ray.
	Ray *RayFacts
	// Lost is why it could not be asked; then there are no facts.
	Lost error
	// Contacts are its attempts to reach the others, by number; Deaf why it could not listen.
	Contacts map[int]Contact
	Deaf     error
}

// RayFacts are what Ray says of a node.
type RayFacts struct {
	Ray, Python string
	// Devices is how much it has of the resource that ranks take.
	Devices float64
}

// Found is what a survey found: nodes in order, the first one is this machine.
type Found struct {
	Nodes []Node
	// Ray and Python are the driver's, "" without Ray.
	Ray, Python string
}

// asker is a node that can be asked: an agent, or a remote one.
type asker interface {
	ask(ctx context.Context, o order) (reply, error)
}

// The bounds of a survey's steps. The longest reads the model.
const (
	factsTimeout = 10 * time.Minute
	askTimeout   = 15 * time.Second
)

// trips is how often a clock is asked: the shortest way is the one that counts.
const trips = 5

// survey asks nodes; those without a rank that can be asked are lost already.
func survey(ctx context.Context, nodes []Node, askers []asker, q Question, ports [2]int) {
	each := func(timeout time.Duration, f func(ctx context.Context, i int) error) {
		var asking sync.WaitGroup
		for i := range nodes {
			if nodes[i].Lost != nil {
				continue
			}
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				if err := f(ctx, i); err != nil {
					nodes[i].Lost = err
				}
			})
		}
		asking.Wait()
	}
	each(askTimeout, func(ctx context.Context, i int) error {
		return nodes[i].clock(ctx,
			askers[i])
	})
	each(factsTimeout, func(ctx context.Context, i int) error {
		r, err := askers[i].ask(ctx, order{Facts: &q})
		if err == nil && r.Facts == nil {
			err = errors.New("it says nothing of itself")
		}
		if err == nil {
			nodes[i].Facts = *r.Facts
		}
		return err
	})
	endpoints := make([]*handshake.Endpoint, len(nodes))
	each(askTimeout, func(ctx context.Context, i int) error {
		l := listening{Nodes: len(nodes)}
		if i == 0 {
			l.Ports = ports // ranks of other hosts come to the driver there
		}
		r, err := askers[i].ask(ctx, order{Listen: &l})
		if endpoints[i] = r.Endpoint; r.Error != "" {
			nodes[i].Deaf = errors.New(r.Error)
		}
		return err
	})
	each(askTimeout, func(ctx context.Context, i int) error {
		others := map[int]handshake.Endpoint{}
		for j, e := range endpoints {
			if j != i && e != nil && nodes[j].Lost == nil {
				others[j] = *e
			}
		}
		r, err := askers[i].ask(ctx, order{Dial: others})
		nodes[i].Contacts = r.Dialled
		return err
	})
}

// clock compares a node's with this machine's.
func (n *Node) clock(ctx context.Context, a asker) error {
	for range trips {
		started := time.Now()
		r, err := a.ask(ctx, order{})
		if err != nil {
			return err
		}
		trip := time.Since(started)
		if n.Trip == 0 || trip < n.Trip {
			n.Trip = trip
			n.Skew = time.Duration(r.Clock - started.Add(trip/2).UnixNano())
		}
	}
	return nil
}
