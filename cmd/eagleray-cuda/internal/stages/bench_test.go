package stages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
)

// TestBench measures a tiny shape as a GPU is measured, on the machine: its figures mean nothing.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("eagleray-cuda's own test counts the same steps")
	}
	var rows []Row
	r := &run{Options: &Options{Driver: &double.Driver{Threads: 2},
		Peers: Peers{"tiny decode 3 at 72": 0.5}}, report: func(x Row) { rows = append(rows, x) }}
	bandwidth, err := r.bandwidth(1 << 16)
	if err != nil || bandwidth <= 0 {
		t.Fatal(bandwidth, err)
	}
	latent := tinyShape(16)
	latent.Latent, latent.Turned, latent.Experts, latent.PerToken, latent.Shared = 32, 16, 4, 2, 1
	latent.prefills = nil
	for _, shape := range []Shape{tinyShape(64), latent} {
		if err := r.benchShape(t.Context(), &shape, bandwidth, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(rows) != 5 || rows[1].Name != "tiny decode 3 at 72" || rows[1].Peer == nil ||
		*rows[1].Ours <= 0 || *rows[1].Floor <= 0 || rows[2].Peer != nil ||
		!strings.Contains(rows[2].Note, "7 rounds") {
		t.Errorf("%+v", rows)
	}
}

// TestPeers reads what the script of peers writes, of two runs.
func TestPeers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.jsonl")
	lines := `{"torch": "2.15", "device": "x"}
{"name": "product 8192", "value": 700.5, "unit": "TFLOP/s"}
{"skipped": "a", "why": "b"}
{"name": "a", "value": 3, "unit": "ms"}
{"name": "a", "value": 1, "unit": "ms"}
`
	if err := os.WriteFile(path, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := ReadPeers(path)
	if err != nil || len(p) != 2 || p[productName] != 700.5 || p["a"] != 2 {
		t.Errorf("%v, %v", p, err)
	}
	rows := []Row{{Name: "a", Ours: figure(1)}, {Name: "a"}, {Name: "b", Ours: figure(1)}}
	if p.Join(rows); *rows[0].Peer != 2 || rows[1].Peer != nil || rows[2].Peer != nil {
		t.Errorf("%+v", rows)
	}
	if none, err := ReadPeers(""); err != nil || len(none) != 0 {
		t.Errorf("%v, %v", none, err)
	}
}
