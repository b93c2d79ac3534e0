package metrics

import "github.com/prometheus/client_golang/prometheus"

// factory makes and registers series that carry the labels model_name and engine.
type factory struct {
	registry *prometheus.Registry
	labels   prometheus.Labels
	// made are the series that were registered; nil is not kept.
	made *[]prometheus.Collector
}

func (f factory) register(c prometheus.Collector) {
	f.registry.MustRegister(c)
	if f.made != nil {
		*f.made = append(*f.made, c)
	}
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help,
		ConstLabels: f.labels})
	f.register(g)
	return g
}

func (f factory) gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help,
		ConstLabels: f.labels}, labels)
	f.register(g)
	return g
}

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help,
		ConstLabels: f.labels})
	f.register(c)
	return c
}

func (f factory) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help,
		ConstLabels: f.labels}, labels)
	f.register(c)
	return c
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help,
		ConstLabels: f.labels, Buckets: buckets})
	f.register(h)
	return h
}
