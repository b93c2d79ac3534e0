package ray_test

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// metricsPorts prints the metrics port of each node.
const metricsPorts = `
import ray, sys
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
for n in ray.nodes():
    print("port", n["NodeManagerAddress"], n["MetricsExportPort"])
`

// TestRealMetrics: what an engine shows is exported by its node, with the labels, and follows it.
func TestRealMetrics(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		node := cl.Nodes[1].IP
		ask := exec.Command(cl.Ray.Python, "-c", metricsPorts, cl.Address, node)
		ask.Env = cl.Env
		out, err := ask.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, after, ok := strings.Cut(string(out), "port "+node+" ")
		port, _, _ := strings.Cut(after, "\n")
		if !ok {
			t.Fatalf("no port of %s in %s", node, out)
		}
		labels := map[string]string{"model_name": "m", "engine": "0"}
		for _, value := range []float64{7, 9} {
			if err := c.ShowMetrics(within(t), []ray.Sample{
				{Name: "eagleray_generation_tokens_total", Help: "Tokens.", Labels: labels,
					Value: value},
				{Name: "eagleray_time_to_first_token_seconds_bucket", Help: "Times.", Value: 2,
					Labels: map[string]string{"model_name": "m", "engine": "0", "le": "0.5"}},
			}); err != nil {
				t.Fatal(err)
			}
			var text string
			has := func(name, label string, value float64) bool {
				for line := range strings.Lines(text) {
					if strings.HasPrefix(line, name+"{") && strings.Contains(line, label) &&
						strings.Contains(line, `model_name="m"`) &&
						strings.HasSuffix(line, fmt.Sprintf(" %.1f\n", value)) {
						return true
					}
				}
				return false
			}
			eventually(t, "the node exports it", func() bool {
				resp, err := http.Get("http://" + node + ":" + port + "/metrics")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				raw, _ := io.ReadAll(resp.Body)
				text = string(raw)
				return has("ray_eagleray_generation_tokens_total", `engine="0"`, value) &&
					has("ray_eagleray_time_to_first_token_seconds_bucket", `le="0.5"`, 2)
			})
		}
	})
}
