package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/pdproxy"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newRoute puts one address before prefill and decode servers.
func newRoute() *cobra.Command {
	var o pdproxy.Options
	var host, trace string
	var port int
	c := &cobra.Command{
		Use:   "route --prefill URL --decode URL",
		Short: "Serve by prefill servers and decode servers",
		Long: `route has OpenAI's API in front of servers that were started with --kv-transfer-config: it has
a prompt computed by one of the --prefill servers, and the answer by one of the --decode servers, to
which the KV blocks go. Keys and other headers are passed on, streams as they come. Servers that are
not well are passed over; when the one that answers ends another goes on, in the middle of a stream too.

  eagleray route --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000 --decode http://10.0.0.3:8000`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			if trace != "" {
				f, err := os.Create(trace)
				if err != nil {
					return fmt.Errorf("--trace: %w", err)
				}
				defer f.Close()
				t, err := pdproxy.NewTrace(f)
				if err != nil {
					return fmt.Errorf("--trace: %w", err)
				}
				o.OnSplit = t.Add
			}
			p, err := pdproxy.New(o)
			if err != nil {
				return cli.UsageError("%v", err)
			}
			return serveRoute(c.Context(), p, net.JoinHostPort(host, strconv.Itoa(port)), o.Log)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.Prefill, "prefill", nil,
		"address of a server that computes prompts; may be repeated")
	f.StringArrayVar(&o.Decode, "decode", nil,
		"address of a server that goes on from them; may be repeated")
	f.StringVar(&host, "host", "127.0.0.1", "address to listen at")
	f.IntVar(&port, "port", 8000, "port to listen at; 0 is any")
	f.StringVar(&trace, "trace", "", "file for the times of all answers, in Chrome's trace format")
	config.Paths(f, config.PathFile, "trace")
	cli.ConfigFlag(c)
	return c
}

// routeGrace is how long answers may take to end once the proxy is to end.
const routeGrace = 30 * time.Second

// serveRoute serves until ctx ends.
func serveRoute(ctx context.Context, p *pdproxy.Proxy, address string, log *slog.Logger) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { p.Watch(watch) })
	defer watching.Wait()
	defer stop()
	s := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	log.Info("ready", "url", "http://"+l.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), routeGrace)
	defer cancel()
	err = s.Shutdown(last)
	if <-ended; errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(fmt.Errorf("answers were cut off after %v", routeGrace), s.Close())
	}
	return err
}
