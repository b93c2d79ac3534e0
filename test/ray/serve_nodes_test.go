package ray_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestServeLosesNodesOfReplicas takes nodes with replicas from an application of eagleray.serve
// under load (python/tests/ray_serve/nodes.py), or has them fall silent, and adds others.
func TestServeLosesNodesOfReplicas(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		worker := raytest.NodeSpec{CPUs: 2, GPUs: 4}
		// By default Ray waits ten seconds for each sign of life of a silent node.
		checks := append(slices.Clone(raytest.QuickChecks), "RAY_health_check_timeout_ms=3000")
		c := raytest.StartCluster(t, r, raytest.Options{Dashboard: true, Env: checks,
			Nodes: []raytest.NodeSpec{{}, worker, worker}})
		mux := http.NewServeMux()
		mux.HandleFunc("POST /nodes", func(w http.ResponseWriter, _ *http.Request) {
			if _, err := c.Join(worker); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
		change := func(f func(*raytest.Node) error) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				i := slices.IndexFunc(c.Nodes, func(n *raytest.Node) bool {
					return strconv.Itoa(n.Raylet) == r.PathValue("raylet")
				})
				if i < 0 {
					http.NotFound(w, r)
				} else if err := f(c.Nodes[i]); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
			}
		}
		mux.HandleFunc("DELETE /nodes/{raylet}", change(c.Crash))
		mux.HandleFunc("POST /nodes/{raylet}/silence", change(c.Silence))
		nodes := httptest.NewServer(mux)
		defer nodes.Close()
		s := &site{Cluster: c}
		s.serveCases(t, "ray_serve.nodes.Nodes", "EAGLERAY_NODES="+nodes.Listener.Addr().String())
	})
}
