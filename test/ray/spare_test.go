package ray_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// blindChecks make Ray never know of a crashed raylet: what goes on without the node does not wait
// for Ray's notice of it.
var blindChecks = []string{"RAY_health_check_failure_threshold=100000"}

// TestServeMovesToSpareNode takes the raylet of a rank from a server, with a spare node in the
// cluster: the rank starts there, once, while Ray takes the lost node for a good one, and the
// request that runs has the answer that it has undisturbed.
func TestServeMovesToSpareNode(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		node := raytest.NodeSpec{CPUs: 1, GPUs: 1}
		c := raytest.StartCluster(t, r, raytest.Options{Env: blindChecks,
			Nodes: []raytest.NodeSpec{node, node, node}})
		s := &site{Cluster: c, observer: startObserver(t, c)}
		defer s.observer.end()
		const tokens = 1200
		p := s.serve(t, "", nil, "-tp", "2")
		url := p.url(t)
		want, err := complete(t, url, tokens)
		if err != nil {
			t.Fatal(err)
		}
		lost, spare := c.Nodes[1], c.Nodes[2]
		if strings.Contains(p.await(t, `msg="ray identify"`), "1:"+spare.IP+"/") {
			lost, spare = spare, lost
		}
		asked := running(t, url, tokens)
		s.KillRaylet(t, lost)
		back := p.await(t, `msg="workers are back"`)
		if a := <-asked; a.err != nil || a.text != want {
			t.Errorf("%v, %q, want %q", a.err, a.text, want)
		}
		var alive map[string]string
		s.observer.must(t, "nodes", nil, &alive)
		known := true
		for _, ip := range alive {
			known = known && ip != lost.IP
		}
		log := p.log.String()
		if starts := strings.Count(log, `msg="restarting the workers"`); starts != 1 || known ||
			!strings.Contains(log, "1:"+spare.IP+"/") {
			t.Errorf("%d starts, Ray knows: %v, the spare node is %s", starts, known, spare.IP)
		}
		t.Logf("back after %s ms", attribute(back, "ms"))
		p.signal(t, syscall.SIGTERM)
		if code := p.exit(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.clean(t)
	})
}
