package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/ops/tracing"
	"github.com/eagleray/eagleray/internal/sys/figure"
	"github.com/eagleray/eagleray/internal/sys/memory"
	"github.com/eagleray/eagleray/internal/sys/parent"
)

// newServe serves a model over HTTP.
func newServe() *cobra.Command {
	cfg := config.Default()
	from := newStarter()
	if !from.private() {
		cfg.Schedule.MaxNumQueuedReqs = config.ServedQueue
	}
	var check checkMode
	c := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "Serve a model over OpenAI's API",
		Long: `serve answers OpenAI's completions and chat API for one model: a folder in Hugging Face layout, a Hub
repo, or the built-in model. SIGTERM or Ctrl-C lets running requests finish; a second one stops now.

  eagleray serve
  eagleray serve ./Qwen3-0.6B -tp 2 --max-model-len 4096 --served-model-name qwen
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What does strings.Index do?"}]}'`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			from.configure(&cfg)
			if err := checkNames(&cfg.Model); err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			if check != "" {
				return checkServer(c.Context(), cfg, check == checkElsewhere)
			}
			if err := watchParent(); err != nil {
				return err
			}
			if cfg.Parallel.Nodes.Headless {
				return serveHeadless(c.Context(), cfg)
			}
			return serve(c.Context(), cfg, from, nil)
		},
	}
	cli.ModelFlag(c.Flags(), &cfg)
	cfg.EngineFlags(c.Flags())
	cfg.ServerFlags(c.Flags())
	c.Flags().Var(&check, "check",
		"find what is wrong with the flags, and with a model that is a folder, without loading "+
			"it, and print what memory it takes; =elsewhere compares no memory: the server will "+
			"run on another machine")
	c.Flags().Lookup("check").NoOptDefVal = checkHere
	config.Choices(c.Flags(), "check", checkHere, checkElsewhere)
	cli.ConfigFlag(c)
	if from != nil {
		tellStarter(c, from)
	}
	return c
}

// tellStarter has the program that started this server know what is wrong with a flag, a file or
// the environment, and how the server ended.
func tellStarter(c *cobra.Command, from *starter) {
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := from.refuse(c.Flags()); err != nil {
			return from.failed(err)
		}
		return from.failed(run(c, args))
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return from.failed(cli.UsageError("%w", config.FlagError(c.Flags(), err)))
	})
}

// checkMode is the value of --check: where the server is to run.
type checkMode string

const (
	checkHere      = "here"
	checkElsewhere = "elsewhere"
)

// String implements pflag.Value.
func (m *checkMode) String() string { return string(*m) }

// Type implements pflag.Value.
func (m *checkMode) Type() string { return "where" }

// Set implements pflag.Value.
func (m *checkMode) Set(s string) error {
	switch s {
	case checkHere, "true":
		*m = checkHere
	case checkElsewhere:
		*m = checkElsewhere
	case "false":
		*m = ""
	default:
		return fmt.Errorf("%q is not one of here, elsewhere", s)
	}
	return nil
}

// checkServer prints the plan of the memory that a server takes here, and what was looked at.
func checkServer(ctx context.Context, cfg config.Config, elsewhere bool) error {
	printWarnings(cfg.Warnings)
	if !elsewhere {
		_, tracer, err := outside(ctx, &cfg.Server, slog.New(slog.DiscardHandler))
		closeTracer(tracer)
		if err != nil {
			return err
		}
	}
	c, err := open.Check(ctx, open.Options{Config: &cfg, Elsewhere: elsewhere})
	if m := (*memory.Misfit)(nil); elsewhere && errors.As(err, &m) {
		c.Left, err = append(c.Left, "memory"), nil
	}
	out := cli.PrintTo(os.Stdout)
	if c.Plan != nil && !elsewhere {
		for _, line := range c.Plan.Table() {
			fmt.Fprintln(out, line)
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "checked:", strings.Join(c.What, ", "))
	fmt.Fprintln(out, "not checked:", strings.Join(c.Left, ", "))
	return out.Err
}

// outside are how a server is reached and where it sends traces, nil for plain HTTP and for none.
func outside(ctx context.Context, s *config.Server, log *slog.Logger) (*tls.Config,
	*tracing.Tracer, error) {
	secure, err := server.TLS(&s.Transport, log)
	if err != nil || s.Observe.TracesEndpoint == "" {
		return secure, nil, err
	}
	tracer, err := tracing.New(ctx, s.Observe.TracesEndpoint, version(), log)
	if err != nil {
		return nil, nil, cli.UsageError("--otlp-traces-endpoint: %w", err)
	}
	return secure, tracer, nil
}

// watchParent ends this process with the one that started it, if that asks for it: by the signal of
// the kernel, else at the end of standard input. The program that would get its answers is gone.
func watchParent() error {
	asked, err := parent.Watch()
	if !asked || err != nil {
		return err
	}
	// The ranks' parent is another one.
	for _, name := range []string{parent.Variable, socketVariable} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	go func() {
		<-parent.Ended(os.Stdin)
		os.Exit(exitError)
	}()
	return nil
}

// checkNames finds a model that was written behind its names, which take all words.
func checkNames(m *config.Model) error {
	if m.Path != "" || len(m.ServedNames) < 2 {
		return nil
	}
	last := m.ServedNames[len(m.ServedNames)-1]
	if info, err := os.Stat(last); err == nil && info.IsDir() || strings.Contains(last, "/") {
		return cli.UsageError(
			"--served-model-name takes all words that follow: write the model %q before it", last)
	}
	return nil
}

// serveHeadless runs ranks for the server of another machine until that ends them, or ctx ends.
func serveHeadless(ctx context.Context, cfg config.Config) error {
	log := newServerLog(cfg.Server.LogFormat)
	surviveReaders()
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	return log.end(groups.RunNode(ctx, groups.NodeOptions{Config: cfg, Log: log.Logger,
		Output: log.ranks(), Version: version()}))
}

// serve runs until ctx ends and running requests are done, or the engine fails. The listener is
// bound first: a taken port is known before a model is loaded. The ranks compute unless null is
// given. from is the program that waits for it, nil for none.
func serve(ctx context.Context, cfg config.Config, from *starter, null *open.Null) error {
	log := from.log(cfg.Server.LogFormat)
	return log.end(serveTo(ctx, cfg, from, null, log))
}

func serveTo(ctx context.Context, cfg config.Config, from *starter, null *open.Null,
	logs *serverLog) error {
	log := logs.Logger
	surviveReaders()
	if from.private() {
		_, release := catchInterrupts(ctx) // Ctrl-C is the program's
		defer release()
		printWarnings(cfg.Warnings)
		cfg.Warnings = nil
	}
	logRayJob(log)
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	secure, tracer, err := outside(ctx, &cfg.Server, log)
	if err != nil {
		return err
	}
	defer closeTracer(tracer)
	listener, err := server.Inherited()
	handedOver := listener != nil
	if err == nil && !handedOver {
		listener, err = server.ListenAt(&cfg.Server)
	}
	if err != nil {
		return err
	}
	defer listener.Close()
	if ip, ok := listener.Addr().(*net.TCPAddr); ok && !ip.IP.IsLoopback() &&
		len(cfg.Server.APIKeys) == 0 {
		log.Warn("anybody who reaches this address may use the server: set --api-key", "address",
			ip.String())
	}

	stores := newKept(cfg.Server.StoreDir, log)
	defer stores.close()
	// The server that hands its socket over has the stores until it ends: then the first use opens
	// them.
	if cfg.Server.StoreDir != "" && !handedOver {
		if err := stores.open(); err != nil {
			return fmt.Errorf("--store-dir: %w", err)
		}
	}

	started := time.Now()
	shown := logs.progress()
	happened := &dashboard.Events{}
	e, m, err := replicas.Open(ctx, engine.Options{Config: cfg, Log: log,
		WorkerOutput: logs.ranks(),
		Version:      version(), Null: null,
		Events: status.Tee(shown.listen, happened.Listen, from.listen(logs))})
	shown.end()
	if ctx.Err() != nil {
		// Asked to end while starting: there are no requests to finish.
		log.Info("stopped before it was ready")
		if err != nil {
			return nil
		}
		return e.Stop(context.WithoutCancel(ctx))
	}
	if err != nil {
		return err
	}
	inner := newInside()
	page, err := dashboard.New(dashboard.Options{Engine: e, Metrics: m, Events: happened,
		Version: version(), MaxLogprobs: cfg.Model.MaxLogprobs,
		Measure: measureOver(inner.dial, e.Info())})
	if err != nil {
		return errors.Join(err, e.Stop(ctx))
	}
	defer page.Close()
	go page.Record()
	handler, err := newHandler(ctx, cfg, e, m, page, stores, log, tracer, from.limits())
	if err != nil {
		return errors.Join(err, e.Stop(ctx))
	}
	defer handler.Close()
	handler.Batches.Start()
	defer handler.Batches.Stop()
	server := handler.HTTPServer(listener.Addr().String())
	served := make(chan error, 1)
	connections := handler.Limit(listener)
	limited := net.Listener(connections)
	if secure != nil {
		limited = tls.NewListener(limited, secure)
	}
	go func() { served <- server.Serve(limited) }()
	var measuring sync.WaitGroup
	measuring.Go(func() { _ = server.Serve(inner) }) // it ends with the server
	defer func() {
		server.Close()
		measuring.Wait()
	}()
	from.ready(&cfg, e.Info())
	url := openURL(listener.Addr(), secure != nil)
	logReady(log, e.Info(), url, time.Since(started))
	if !logs.json && !from.private() && strings.HasPrefix(url, "http") {
		log.Info("open " + url + " in a browser")
	}
	if !cfg.Server.DisableLogStats {
		figures, end := context.WithCancel(ctx)
		var loop sync.WaitGroup
		loop.Go(func() { logFigures(figures, log, e.Totals) })
		defer func() {
			end()
			loop.Wait()
		}()
	}
	defer explainOnSignal(log, e)()
	select {
	case err := <-served:
		return errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
	case <-e.Failed():
		from.failed(e.Healthy(ctx))
		// Answer for a moment longer: clients and probes learn why from the error of their
		// requests.
		time.Sleep(failureGrace)
		server.Close()
		<-served
		return errors.Join(e.Healthy(ctx), e.Stop(context.WithoutCancel(ctx)))
	case <-ctx.Done():
	}
	var answer func(context.Context)
	if handedOver {
		answer = func(ctx context.Context) {
			handler.Drain(ctx, connections)
			// What was being accepted when that began is known now.
			ended := <-served
			served <- ended
			handler.Drain(ctx, connections)
		}
	}
	handler.Batches.Stop() // what they have not answered the next server will
	err = drain(log, server, e,
		time.Duration(cfg.Server.ShutdownTimeoutSeconds)*time.Second, answer)
	<-served
	return err
}

// explainOnSignal logs what every rank is doing at each SIGUSR1, until the function it returns is
// called.
func explainOnSignal(log *slog.Logger, e *replicas.Router) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	var explaining sync.WaitGroup
	explaining.Go(func() {
		for range signals {
			for _, r := range e.Report() {
				if e.Info().Engines > 1 {
					log.Info(r.String(), "engine", r.Engine)
				} else {
					log.Info(r.String())
				}
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(signals)
		explaining.Wait()
	}
}

// closeTracer exports the spans that are left.
func closeTracer(t *tracing.Tracer) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracesGrace)
	defer cancel()
	_ = t.Close(ctx) // what a collector does not take in time is lost
}

// tracesGrace is how long the end of a server waits for its collector.
const tracesGrace = 3 * time.Second

// failureGrace is how long a server whose engine has failed still answers.
const failureGrace = time.Second

// kept are the stores of a server. Responses, which clients make without a thought, have one of
// their own: they crowd out nothing but older ones.
type kept struct{ state, responses *store.Store }

// maxResponseBytes bounds what is kept of responses.
const maxResponseBytes = 256 << 20

// newKept makes the stores of a folder, "" for memory.
func newKept(dir string, log *slog.Logger) kept {
	responses := dir
	if dir != "" {
		responses = filepath.Join(dir, "responses")
	}
	damaged := func(path, aside string, cause error) {
		log.Error("a file of --store-dir is damaged: it was set aside, and an empty one takes "+
			"its place", "file", path, "aside", aside, "cause", cause.Error())
	}
	return kept{store.New(dir, store.Options{Damaged: damaged}),
		store.New(responses, store.Options{MaxBytes: maxResponseBytes, Damaged: damaged})}
}

func (k kept) open() error { return errors.Join(k.state.Open(), k.responses.Open()) }

func (k kept) close() {
	k.state.Close()
	k.responses.Close()
}

// newHandler is the HTTP surface of an engine. m, page, log and tracer may be nil, and so may the
// stores; limits may be empty.
func newHandler(ctx context.Context, cfg config.Config, e *replicas.Router, m *metrics.Metrics,
	page *dashboard.Page, kept kept, log *slog.Logger, tracer *tracing.Tracer,
	limits wire.Limits) (*api.API, error) {
	trainer, err := newTrainer(&cfg, e, log)
	if err != nil {
		return nil, err
	}
	loaded, err := newAdapters(ctx, &cfg, e, log)
	if err != nil {
		return nil, err
	}
	return api.New(api.Options{Trainer: trainer, Adapters: loaded, Info: e.Info(), Engine: e,
		Config: cfg, Log: log, Limits: limits, Metrics: m,
		Version: version(), Dashboard: page, Tracer: tracer, Store: kept.state,
		Responses: kept.responses,
		Health:    e.Health, Elastic: e, Ranks: func() any { return e.Report() },
		Experts: e.ExpertLoads})
}

// newTrainer is the control of --enable-rlhf and --enable-sleep-mode, nil without either.
func newTrainer(cfg *config.Config, e *replicas.Router, log *slog.Logger) (*rlhf.Control, error) {
	if s := &cfg.Server; !s.EnableRLHF && !s.EnableSleepMode {
		return nil, nil
	}
	host := ""
	if cfg.Server.EnableRLHF && cfg.Server.Transport.UDS == "" {
		host = cfg.Server.Host
	}
	return rlhf.New(rlhf.Options{Engines: e.Engines, Host: host, Layout: e.Info().Layout, Log: log,
		Events: e.Events(), Folder: e.Info().Folder(),
		Predicts: cfg.Speculative.Method == config.MTP,
		Allowed:  cfg.Server.AllowedLocalWeights})
}

func logReady(log *slog.Logger, info *open.Info, url string, took time.Duration) {
	rank := info.Ranks[0]
	if info.Engines > 1 {
		log = log.With("engines", info.Engines)
	}
	if l := info.Layout; l.World() > 1 {
		log = log.With("layout", l.String())
		if l.PP > 1 {
			log = log.With("stages", figure.Numbers(info.StageLayers))
		}
	}
	log.Info("ready", "model", info.Names[0], "dtype", info.DType,
		"weights_mb", info.WeightBytes>>20, "ranks", len(info.Ranks), "threads", rank.Threads,
		"binding", each(info.Ranks, func(r *queue.Ready) string { return r.Binding }),
		"isa", each(info.Ranks, func(r *queue.Ready) string { return r.Kernels }),
		"kv_cache_dtype", info.CacheDType,
		"kv_cache_tokens", info.Engines*info.CacheTokens,
		"kv_cache_mb", info.CacheBytes>>20,
		"max_model_len", info.MaxModelLen, "seconds", figure.Seconds(took, 3),
		"url", url)
}

// each is what says tells of every rank; what is said of several stands once.
func each(ranks []queue.Ready, says func(*queue.Ready) string) string {
	var all []string
	for i := range ranks {
		if said := says(&ranks[i]); said != "" && !slices.Contains(all, said) {
			all = append(all, said)
		}
	}
	return strings.Join(all, " | ")
}

// openURL is an address at which this machine reaches the server: one that listens everywhere is
// not at the address that says so.
func openURL(addr net.Addr, secure bool) string {
	if addr.Network() == "unix" {
		return "unix:" + addr.String()
	}
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return scheme + net.JoinHostPort("127.0.0.1", port)
	}
	return scheme + addr.String()
}
