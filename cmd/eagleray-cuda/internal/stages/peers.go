package stages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Peers are what other programs measured on the same device, by the names of our own figures: of
// several runs the median.
type Peers map[string]float64

// productName is the product whose rate is a device's operations a second.
const productName = "product 8192"

// peerFigure is a line of a file of peers' figures.
type peerFigure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// ReadPeers reads a file of figures, an object {"name": …, "value": …} a line. Other objects, of
// what was skipped, are let pass. No path is no peers.
func ReadPeers(path string) (Peers, error) {
	p := Peers{}
	if path == "" {
		return p, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string][]float64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var one peerFigure
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if one.Name != "" && one.Value > 0 {
			all[one.Name] = append(all[one.Name], one.Value)
		}
	}
	for name, values := range all {
		p[name] = median(values)
	}
	return p, lines.Err()
}

// of is a peer's figure, nil for none.
func (p Peers) of(name string) *float64 {
	if v, ok := p[name]; ok {
		return &v
	}
	return nil
}

// Join puts peers' figures beside rows of the same names.
func (p Peers) Join(rows []Row) {
	for i := range rows {
		if v := p.of(rows[i].Name); v != nil && rows[i].Ours != nil {
			rows[i].Peer = v
		}
	}
}

func median(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
