package ray_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestServeRenounces has the ingress of a split application tell a prefill replica that no decode
// replica needs its blocks; one with another certificate is not told.
func TestServeRenounces(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		agent, err := kvtransfer.Listen(kvtransfer.Options{Host: "127.0.0.1", Blocks: 1,
			Shape: kvtransfer.Shape{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(agent.Close)
		at := agent.Address()
		h := kvtransfer.Pin{Secret: kvtransfer.NewSecret()}
		if err := agent.Pin(h); err != nil {
			t.Fatal(err)
		}
		renounce := func(k kvtransfer.Ticket) ([]byte, error) {
			text, err := json.Marshal(k)
			if err != nil {
				t.Fatal(err)
			}
			const code = "import asyncio, json, sys; from eagleray.serve._handover import " +
				"renounce; asyncio.run(renounce(json.loads(sys.argv[1])))"
			c := exec.CommandContext(within(t), r.Python, "-c", code, string(text))
			c.Dir = filepath.Join("..", "..", "python")
			return c.CombinedOutput()
		}
		k := kvtransfer.Ticket{DoRemotePrefill: true, Host: at.Host, Port: at.Port,
			Secret: h.Secret}
		if out, err := renounce(k); err == nil {
			t.Errorf("an agent with another certificate was told: %s", out)
		}
		k.Fingerprint = at.Fingerprint
		if out, err := renounce(k); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !agent.AwaitFetched(t.Context(), h.Secret) {
			t.Error("the blocks were not given up")
		}
	})
}
