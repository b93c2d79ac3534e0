package metrics

import (
	"maps"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Sample is the value of one series, for systems that have metrics of their own.
type Sample struct {
	// Name has an underscore in the place of the colon.
	Name, Help string
	Labels     map[string]string
	Value      float64
}

// Samples are the values of the series of an engine by its number, or of all if that is negative:
// histograms as their buckets, sums and counts. Engine 0 has those of the server's requests.
func (m *Metrics) Samples(number int) []Sample {
	families, err := m.registry.Gather()
	if err != nil {
		return nil // a series without a value now: there is a next time
	}
	var all []Sample
	for _, f := range families {
		name := strings.ReplaceAll(f.GetName(), ":", "_")
		server := strings.HasPrefix(name, "http_")
		if server {
			name = DefaultPrefix + "_" + name
		}
		for _, metric := range f.Metric {
			labels := map[string]string{}
			for _, l := range metric.Label {
				labels[l.GetName()] = l.GetValue()
			}
			engine := labels["engine"]
			if server {
				engine = m.label(0)
				labels["model_name"], labels["engine"] = m.options.ModelName, engine
			}
			if number < 0 || engine == m.label(number) {
				all = append(all, values(Sample{name, f.GetHelp(), labels, 0}, metric)...)
			}
		}
	}
	return all
}

// values are the samples of one metric.
func values(s Sample, m *dto.Metric) []Sample {
	of := func(suffix string, value float64) Sample {
		return Sample{s.Name + suffix, s.Help, s.Labels, value}
	}
	switch {
	case m.Gauge != nil:
		return []Sample{of("", m.Gauge.GetValue())}
	case m.Counter != nil:
		return []Sample{of("", m.Counter.GetValue())}
	case m.Histogram == nil:
		return nil
	}
	h := m.Histogram
	all := []Sample{of("_sum", h.GetSampleSum()), of("_count", float64(h.GetSampleCount()))}
	bucket := func(le string, count uint64) {
		b := of("_bucket", float64(count))
		b.Labels = map[string]string{"le": le}
		maps.Copy(b.Labels, s.Labels)
		all = append(all, b)
	}
	for _, b := range h.Bucket {
		bucket(strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64), b.GetCumulativeCount())
	}
	bucket("+Inf", h.GetSampleCount())
	return all
}
