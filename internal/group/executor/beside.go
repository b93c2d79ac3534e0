package executor

import (
	"context"
	"net"
	"sync"

	"github.com/eagleray/eagleray/internal/link/rpc"
)

// CallBeside calls a method whose ranks open connections beside their links (join.Rank.Beside), and
// calls f with each of them: received is the number that the rank sent. A connection is closed when
// f returns, and at the end of the call. Ranks without a link open none.
func CallBeside[R any](ctx context.Context, e *Executor, m rpc.Method[[]int, R], ranks []int,
	opt RPCOptions, f func(c net.Conn, received uint64)) ([]R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	for _, rank := range ranks {
		if e.driver == nil {
			break
		}
		conns, end := e.driver.Beside(rank)
		serving.Go(func() {
			defer end()
			for {
				select {
				case c := <-conns:
					stop := context.AfterFunc(ctx, func() { c.Close() })
					f(c, c.Peer.Resume.Received)
					if stop() {
						c.Close()
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return Call(ctx, e, m, ranks, opt)
}
