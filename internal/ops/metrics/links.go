package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Link are the figures of the connection to one rank of another host, counted since it was made.
type Link struct {
	// Engine is the number of the rank's engine.
	Engine, Rank int
	// RTT is the smoothed round-trip time of heartbeats.
	RTT time.Duration
	// SentBytes and ReceivedBytes count payloads, Resumes reconnections without loss.
	SentBytes, ReceivedBytes, Resumes uint64
}

// linkCollector asks for the links' figures when they are scraped.
type linkCollector struct {
	links                 func() []Link
	rtt, sent, recv, back *prometheus.Desc
}

// WatchLinks shows the links that f returns, as of each scrape. It is called once.
func (e *Engine) WatchLinks(f func() []Link) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, []string{"rank"}, e.labels)
	}
	e.register(&linkCollector{
		links: f,
		rtt: desc("link_round_trip_seconds",
			"Smoothed round-trip time to a rank of another host."),
		sent: desc("link_sent_bytes_total", "Bytes of records sent to a rank of another host."),
		recv: desc("link_received_bytes_total",
			"Bytes of records received from a rank of another host."),
		back: desc("link_resumes_total",
			"Connections to a rank of another host that were cut and resumed without loss."),
	})
}

// Describe implements prometheus.Collector.
func (c *linkCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.rtt, c.sent, c.recv, c.back} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *linkCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.links() {
		rank := strconv.Itoa(l.Rank)
		show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, rank)
		}
		show(c.rtt, prometheus.GaugeValue, l.RTT.Seconds())
		show(c.sent, prometheus.CounterValue, float64(l.SentBytes))
		show(c.recv, prometheus.CounterValue, float64(l.ReceivedBytes))
		show(c.back, prometheus.CounterValue, float64(l.Resumes))
	}
}

var _ prometheus.Collector = (*linkCollector)(nil)
