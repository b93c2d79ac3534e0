package config

import "github.com/spf13/pflag"

// Observe says what others learn of requests.
type Observe struct {
	// LogRequests logs each request's parameters and lengths when it comes and when it ends.
	LogRequests bool
	// TracesEndpoint is where spans go by OTLP over HTTP; "" is nowhere.
	TracesEndpoint string
}

// observeFlags defines the flags of Observe.
func (c *Config) observeFlags(f *pflag.FlagSet) {
	o := &c.Server.Observe
	f.BoolVar(&o.LogRequests, "enable-log-requests", false,
		"log parameters and lengths of each request, never its text")
	f.StringVar(&o.TracesEndpoint, "otlp-traces-endpoint", "",
		"where traces of requests go by OTLP over HTTP, such as http://localhost:4318")
	Alias(f, "otlp-traces-endpoint", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
}
