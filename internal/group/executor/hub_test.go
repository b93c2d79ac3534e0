package executor

import (
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
)

// memPort is the end of a rank that is a goroutine of the test.
type memPort struct {
	queue.Port
	rank   int
	status *status.Rank
}

// newMemHub makes a hub of ranks that are goroutines of the test.
func newMemHub(ranks int) (queue.Hub, []*memPort) {
	hub, ends := queue.Pipes(ranks)
	ports := make([]*memPort, ranks)
	for rank, p := range ends {
		ports[rank] = &memPort{Port: p, rank: rank, status: p.Status()}
	}
	return hub, ports
}
