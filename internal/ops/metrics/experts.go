package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Experts is the load of the experts of one layer.
type Experts struct {
	Layer int
	// Rows counts those that were sent to experts, since the ranks have loaded their weights.
	Rows int64
	// Balancedness is the mean over the largest of the experts' recent rows, Hottest the share of
	// the expert with most of them; both are 0 to 1.
	Balancedness, Hottest float64
}

// expertCollector asks for the load of experts when it is scraped. Single experts have no series:
// the largest models have thousands of them.
type expertCollector struct {
	layers                 func() []Experts
	rows, balance, hottest *prometheus.Desc
}

// WatchExperts shows the layers with experts that f returns, as of each scrape. It is called once.
func (e *Engine) WatchExperts(f func() []Experts) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, []string{"layer"}, e.labels)
	}
	e.register(&expertCollector{
		layers: f,
		rows: desc("expert_tokens_total",
			"Tokens that were sent to experts of the layer, each once to every expert it has."),
		balance: desc("expert_load_balancedness",
			"Mean over the largest of the tokens of the layer's experts in the last minutes."),
		hottest: desc("expert_load_hottest_perc", "Share that the expert with most of them has of "+
			"the tokens of the layer's experts in the last minutes. 1 means 100 percent."),
	})
}

// Describe implements prometheus.Collector.
func (c *expertCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.rows, c.balance, c.hottest} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *expertCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.layers() {
		layer := strconv.Itoa(l.Layer)
		show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, layer)
		}
		show(c.rows, prometheus.CounterValue, float64(l.Rows))
		show(c.balance, prometheus.GaugeValue, l.Balancedness)
		show(c.hottest, prometheus.GaugeValue, l.Hottest)
	}
}

var _ prometheus.Collector = (*expertCollector)(nil)
