package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/attach"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/parent"
)

// newAttach is the verb of programs that have an engine of their own: standard input is one end of
// a socket pair, over which requests come and answers go.
func newAttach() *cobra.Command {
	cfg := config.Default()
	c := &cobra.Command{
		Use:    "attach [MODEL]",
		Short:  "Answer the program that started this one, over standard input",
		Hidden: true,
		Args:   cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			// The program asks for what it wants to know.
			cfg.Server.EnablePromptTokensDetails = true
			cfg.Model.TrustRequestChatTemplate = true
			return answerParent(c.Context(), func(ctx context.Context) (*replicas.Router, error) {
				if err := cfg.Validate(); err != nil {
					return nil, err
				}
				printWarnings(cfg.Warnings)
				return openEngine(ctx, cfg)
			}, &cfg)
		},
	}
	cli.ModelFlag(c.Flags(), &cfg)
	cfg.EngineFlags(c.Flags())
	cfg.ServerFlags(c.Flags())
	cli.ConfigFlag(c)
	run := c.RunE
	// What is wrong with a flag, a file or the environment is told to the program, too.
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := notListening(c.Flags()); err != nil {
			return tellParent(err)
		}
		return tellParent(run(c, args))
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return tellParent(cli.UsageError("%w", config.FlagError(c.Flags(), err)))
	})
	return c
}

// listening are flags of servers that mean nothing without an address.
var listening = []string{"host", "port", "uds", "api-key", "api-key-file", "root-path", "headless",
	"ssl-certfile", "ssl-keyfile"}

// notListening refuses those that the program gave. A file or an environment that is for servers,
// too, may have them.
func notListening(f *pflag.FlagSet) error {
	for _, name := range listening {
		if f.Changed(name) {
			return cli.UsageError("--%s is for a server: nobody connects to this engine", name)
		}
	}
	return nil
}

// tellParent tells the program why there is no engine, unless it knows.
func tellParent(err error) error {
	if told := (*loggedError)(nil); err == nil || errors.As(err, &told) {
		return err
	}
	socket, socketErr := parentSocket()
	if socketErr != nil {
		return err // and a user reads standard error
	}
	return serveParent(context.Background(), socket, 0,
		func(context.Context) (http.Handler, any, error) { return nil, nil, err })
}

// serveParent is attach.Serve, after which the program knows of an error.
func serveParent(ctx context.Context, socket net.Conn, body int, opens attach.Open) error {
	err := attach.Serve(ctx, socket, body, func(ctx context.Context) (http.Handler, any, error) {
		h, ready, err := opens(ctx)
		wrong, model := (*config.UsageError)(nil), (*open.ModelError)(nil)
		if errors.As(err, &wrong) || errors.As(err, &model) {
			err = attach.Usage{Err: err}
		}
		return h, ready, err
	})
	if err != nil {
		return &loggedError{err}
	}
	return nil
}

// parentSocket is standard input, which must be a socket.
func parentSocket() (net.Conn, error) {
	socket, err := net.FileConn(os.Stdin) // a duplicate
	if err != nil {
		return nil, cli.UsageError("attach is for programs: standard input is no socket (%w)", err)
	}
	os.Stdin.Close()
	return socket, nil
}

// attachedEngine is what the program is told of the engine.
type attachedEngine struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// Model is the first of its names.
	Model       string `json:"model"`
	MaxModelLen int    `json:"max_model_len"`
	// InFlight is how many requests keep the engine busy.
	InFlight int `json:"window"`
	// MaxBody bounds the bytes of a request's body.
	MaxBody int64 `json:"max_body"`
	// Pooling says that the engine answers with embeddings and scores, not with tokens.
	Pooling bool `json:"pooling"`
	// Sampling is what requests get that say nothing of it: the model's own.
	Sampling samplingDefaults `json:"sampling"`
}

// samplingDefaults is sample.Settings with the names of SamplingParams; what the model does not say
// is left out.
type samplingDefaults struct {
	Temperature       *float64 `json:"temperature,omitempty"`
	TopP              *float64 `json:"top_p,omitempty"`
	MinP              *float64 `json:"min_p,omitempty"`
	RepetitionPenalty *float64 `json:"repetition_penalty,omitempty"`
	TopK              *int     `json:"top_k,omitempty"`
	MaxTokens         *int     `json:"max_tokens,omitempty"`
}

// answerParent answers the program until it closes its end, dies, or the engine fails. Ctrl-C is
// the program's business.
func answerParent(ctx context.Context, open func(context.Context) (*replicas.Router, error),
	cfg *config.Config) error {
	socket, err := parentSocket()
	if err != nil {
		return err
	}
	surviveReaders()
	// Another process may still hold the program's end of the socket when the program is gone.
	if err := parent.Signal(unix.SIGTERM); err != nil {
		return err
	}
	_, release := catchInterrupts(ctx)
	defer release()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var e *replicas.Router
	var watch sync.WaitGroup
	err = serveParent(ctx, socket, int(cfg.Server.MaxRequestBodyBytes),
		func(ctx context.Context) (http.Handler, any, error) {
			var err error
			if e, err = open(ctx); err != nil {
				return nil, nil, err
			}
			log := slog.New(slog.NewTextHandler(os.Stderr,
				&slog.HandlerOptions{Level: slog.LevelWarn}))
			// the program has its engine for itself
			cfg.Server.EnableRLHF, cfg.Server.EnableElasticEP = true, true
			// it is reached by the socket alone
			cfg.Server.Host = ""
			// it could send the bytes as well
			cfg.Server.AllowedLocalWeights = []string{"/"}
			surface, err := newHandler(*cfg, e, nil, nil, kept{}, log, nil)
			if err != nil {
				return nil, nil, err
			}
			watch.Go(func() {
				select {
				case <-e.Failed():
					fail(e.Healthy(ctx))
				case <-ctx.Done():
				}
			})
			info := e.Info()
			return surface.Attached(), attachedEngine{PID: os.Getpid(), Version: version(),
				Model:       info.Names[0],
				MaxModelLen: info.MaxModelLen, InFlight: rowsInFlight(cfg),
				MaxBody: cfg.Server.MaxRequestBodyBytes, Pooling: info.Pooling != nil,
				Sampling: samplingDefaults(info.Generation)}, nil
		})
	watch.Wait()
	if e != nil {
		err = errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
	}
	return err
}
