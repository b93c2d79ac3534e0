package handshake

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
)

// TestManyListeners starts 32 drivers at the same moment: each holds an address of its own from the
// beginning, which no other process can bind, and is reached by its own worker.
func TestManyListeners(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		const drivers = 32
		fixtures := make([]*fixture, drivers)
		begin := make(chan struct{})
		var wg sync.WaitGroup
		for i := range drivers {
			wg.Go(func() {
				<-begin
				f := &fixture{token: NewToken()}
				var err error
				f.Listener, err = Listen(Options{Instance: NewInstance(), Token: f.token, World: 1,
					TCP: "127.0.0.1", Unix: true})
				if err != nil {
					t.Error(err)
					return
				}
				fixtures[i] = f
				t.Cleanup(func() { f.Listener.Close() })
				driver, worker := f.meet(t, f.via(network), Identity{PID: os.Getpid() + i})
				talk(t, driver, worker)
				if driver.Peer.PID != os.Getpid()+i ||
					worker.Peer.Instance != f.Endpoint().Instance {
					t.Errorf("driver %d has the worker %+v, which has the driver %v", i,
						driver.Peer, worker.Peer.Instance)
				}
			})
		}
		close(begin)
		wg.Wait()
		seen := map[string]bool{}
		for _, f := range fixtures {
			if f == nil {
				continue
			}
			e := f.Endpoint()
			if seen[e.TCP] || seen[e.Unix] || e.TCP == "" || e.Unix == "" {
				t.Errorf("%s and %s are not its own", e.TCP, e.Unix)
			}
			seen[e.TCP], seen[e.Unix] = true, true
			if l, err := net.Listen("tcp", e.TCP); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%s is free while its driver lives: %v, %v", e.TCP, l, err)
			}
		}
	})
}
