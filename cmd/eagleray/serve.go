package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/metrics"
	"github.com/eagleray/eagleray/internal/openai"
)

// newServe serves a model over HTTP.
func newServe() *cobra.Command {
	cfg := config.Default()
	c := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "Serve a model over OpenAI's API",
		Long: `serve answers OpenAI's completions and chat API for one model: a folder in Hugging Face layout, a Hub
repo, or the built-in model. SIGTERM or Ctrl-C lets running requests finish; a second one stops now.

  eagleray serve
  eagleray serve ./Qwen3-0.6B -tp 2 --max-model-len 4096 --served-model-name qwen
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What does strings.Index do?"}]}'`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			useModel(&cfg, args)
			if err := checkNames(&cfg.Model); err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			return serve(c.Context(), cfg)
		},
	}
	modelFlag(c.Flags(), &cfg)
	cfg.EngineFlags(c.Flags())
	cfg.ServerFlags(c.Flags())
	configFlag(c)
	return c
}

// checkNames finds a model that was written behind its names, which take all words.
func checkNames(m *config.Model) error {
	if m.Path != "" || len(m.ServedNames) < 2 {
		return nil
	}
	last := m.ServedNames[len(m.ServedNames)-1]
	if info, err := os.Stat(last); err == nil && info.IsDir() || strings.Contains(last, "/") {
		return usageError("--served-model-name takes all words that follow: write the model %q "+
			"before it", last)
	}
	return nil
}

// serve runs until ctx ends and running requests are done, or the engine fails. The listener is
// bound first: a taken port is known before a model is loaded.
func serve(ctx context.Context, cfg config.Config) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	addr := net.JoinHostPort(cfg.Server.Host, strconv.Itoa(cfg.Server.Port))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("--host %s --port %d: %w", cfg.Server.Host, cfg.Server.Port, err)
	}
	defer listener.Close()
	if ip, ok := listener.Addr().(*net.TCPAddr); ok && !ip.IP.IsLoopback() &&
		len(cfg.Server.APIKeys) == 0 {
		log.Warn("anybody who reaches this address may use the server: set --api-key", "address",
			ip.String())
	}

	begun := time.Now()
	shown := newProgress(os.Stderr)
	e, m, err := engine.Open(ctx, engine.Options{Config: cfg, Events: shown.listen, Log: log})
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
	handler, err := newHandler(cfg, e, m, log)
	if err != nil {
		return errors.Join(err, e.Stop(ctx))
	}
	server := handler.HTTPServer(listener.Addr().String())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	logReady(log, e.Info(), listener.Addr(), time.Since(begun))
	if !cfg.Server.DisableLogStats {
		figures, end := context.WithCancel(ctx)
		var logging sync.WaitGroup
		logging.Go(func() { logFigures(figures, log, e) })
		defer func() {
			end()
			logging.Wait()
		}()
	}
	defer explainOnSignal(log, e)()
	select {
	case err := <-served:
		return errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
	case <-e.Failed():
		// Answer for a moment longer: clients and probes learn why from the error of their
		// requests.
		time.Sleep(failureGrace)
		server.Close()
		<-served
		return errors.Join(e.Healthy(ctx), e.Stop(context.WithoutCancel(ctx)))
	case <-ctx.Done():
	}
	err = drain(log, server, e, time.Duration(cfg.Server.ShutdownTimeoutSeconds)*time.Second)
	<-served
	return err
}

// explainOnSignal logs what every rank is doing at each SIGUSR1, until the function it returns is
// called.
func explainOnSignal(log *slog.Logger, e *engine.Engine) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	var explaining sync.WaitGroup
	explaining.Go(func() {
		for range signals {
			for _, r := range e.Report() {
				log.Info(r.String())
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(signals)
		explaining.Wait()
	}
}

// failureGrace is how long a server whose engine has failed still answers.
const failureGrace = time.Second

// drain refuses new requests and lets running ones finish within the time given.
func drain(log *slog.Logger, server *http.Server, e *engine.Engine, within time.Duration) error {
	log.Info("shutting down: running requests may finish", "within", within)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := e.Stop(ctx)
	// The requests are over; their last bytes are on the way.
	last, cancel := context.WithTimeout(context.Background(), failureGrace)
	defer cancel()
	if shutdown := server.Shutdown(last); shutdown != nil {
		server.Close()
	}
	return err
}

// newHandler is the HTTP surface of an engine. m and log may be nil.
func newHandler(cfg config.Config, e *engine.Engine, m *metrics.Metrics,
	log *slog.Logger) (*openai.Server, error) {
	return openai.New(openai.Options{Info: e.Info(), Engine: e, Config: cfg, Log: log, Metrics: m,
		Version: version(),
		Ranks:   func() any { return e.Report() }})
}

func logReady(log *slog.Logger, info *engine.Info, addr net.Addr, took time.Duration) {
	rank := info.Ranks[0]
	log.Info("ready", "url", "http://"+addr.String(), "model", info.Names[0], "dtype", info.DType,
		"weights_mb", info.WeightBytes>>20, "ranks", len(info.Ranks), "threads", rank.Threads,
		"isa", rank.ISA,
		"kv_cache_tokens", info.Blocks*info.BlockSize, "kv_cache_mb", info.CacheBytes>>20,
		"max_model_len", info.MaxModelLen, "seconds", fmt.Sprintf("%.3f", took.Seconds()))
}

// figuresEvery is how often a busy server logs its figures.
const figuresEvery = 10 * time.Second

// logFigures logs throughput while there is any.
func logFigures(ctx context.Context, log *slog.Logger, e *engine.Engine) {
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	was := e.Totals()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := e.Totals()
		if now.PromptTokens == was.PromptTokens && now.OutputTokens == was.OutputTokens {
			continue
		}
		seconds := figuresEvery.Seconds()
		log.Info("figures", "prompt_tokens_per_s",
			int(float64(now.PromptTokens-was.PromptTokens)/seconds),
			"output_tokens_per_s", int(float64(now.OutputTokens-was.OutputTokens)/seconds),
			"running", now.Running, "waiting", now.Waiting, "kv_usage_percent",
			int(100*now.CacheUsage))
		was = now
	}
}
