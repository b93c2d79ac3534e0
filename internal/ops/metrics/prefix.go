package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// renamed shows the families of a registry under other prefixes: each of ours once for each of
// them, those without our prefix as they are.
func renamed(from prometheus.Gatherer, prefixes []string) prometheus.Gatherer {
	if slices.Equal(prefixes, []string{DefaultPrefix}) {
		return from
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		var out []*dto.MetricFamily
		for _, f := range families {
			name, ours := strings.CutPrefix(f.GetName(), prefix)
			if !ours {
				out = append(out, f)
				continue
			}
			for _, p := range prefixes {
				out = append(out, &dto.MetricFamily{Name: new(p + ":" + name), Help: f.Help,
					Type: f.Type, Metric: f.Metric, Unit: f.Unit})
			}
		}
		slices.SortFunc(out, func(a, b *dto.MetricFamily) int {
			return strings.Compare(a.GetName(), b.GetName())
		})
		return out, err
	})
}
