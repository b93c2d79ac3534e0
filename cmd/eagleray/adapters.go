package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// newAdapters is the control of --enable-lora with the adapters of --lora-modules, nil without it.
func newAdapters(ctx context.Context, cfg *config.Config, e *replicas.Router,
	log *slog.Logger) (*adapters.Control, error) {
	l := &cfg.LoRA
	if !l.Enable {
		return nil, nil
	}
	named, err := l.Named()
	if err != nil {
		return nil, err
	}
	o := adapters.Options{Engines: e.Engines, MaxRank: l.MaxRank, Most: l.MaxCPULoras, Log: log,
		Allowed: cfg.Server.AllowedLocalWeights}
	if cfg.Server.Transport.UDS != "" { // its clients are programs of its user
		o.Allowed = append(o.Allowed, "/")
	}
	fetch := func(ctx context.Context, repo string) (string, error) {
		return hub.Resolve(ctx, repo, hub.Options{DownloadDir: cfg.Model.DownloadDir,
			Files: []string{lora.ConfigFile, lora.WeightsFile}})
	}
	if org, onHub := l.HubOrganisation(); onHub {
		o.May = func(name string) bool { return repoOf(name, org) }
		o.Resolve = func(ctx context.Context, name string) (string, error) {
			dir, err := fetch(ctx, name)
			return dir, unknown(err, hub.ErrNotFound, hub.ErrOffline)
		}
		o.Fetch = func(ctx context.Context, name string) (string, error) {
			if !repoOf(name, org) {
				return "", nil
			}
			return o.Resolve(ctx, name)
		}
	} else if strings.Contains(l.Resolver, "://") {
		o.May = func(name string) bool { return filepath.IsLocal(name) && name != "." }
		o.Resolve = func(ctx context.Context, name string) (string, error) {
			dir, err := fetch(ctx, strings.TrimSuffix(l.Resolver, "/")+"/"+name)
			return dir, unknown(err, hub.ErrNotFound)
		}
	} else if l.Resolver != "" {
		o.Resolve, o.May = adapters.InFolder(l.Resolver)
		o.Allowed = append(o.Allowed, l.Resolver)
	}
	c, err := adapters.New(o)
	if err != nil {
		return nil, err
	}
	for _, a := range named {
		path := a.Path
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && repoOf(path, "") {
			if path, err = fetch(ctx, path); err != nil {
				return nil, fmt.Errorf("--lora-modules %s=%s: %w", a.Name, a.Path, err)
			}
		}
		if err := c.Load(ctx, a.Name, path, false); err != nil {
			return nil, fmt.Errorf("--lora-modules %s=%s: %w", a.Name, a.Path, err)
		}
	}
	return c, nil
}

// unknown is an error of a search, which says that there is no such adapter where it is of one of
// some kinds.
func unknown(err error, kinds ...error) error {
	if slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
		return fmt.Errorf("%w: %w", adapters.ErrUnknown, err)
	}
	return err
}

// repoOf says that a name is that of a repo of the Hub, of an organisation unless that is "".
func repoOf(name, org string) bool {
	owner, repo, two := strings.Cut(name, "/")
	return two && owner != "" && repo != "" && !strings.Contains(repo, "/") &&
		filepath.IsLocal(name) && (org == "" || owner == org)
}

// oneAdapter is --lora-path, for commands whose requests come from one place: all ask for it.
type oneAdapter struct{ path string }

// oneName is what requests call the adapter of --lora-path.
const oneName = "lora"

func (o *oneAdapter) flag(f *pflag.FlagSet) {
	f.StringVar(&o.path, "lora-path", "", "folder or Hub repo of an adapter that answers")
	config.Paths(f, config.PathFolder, "lora-path")
}

// apply makes the flag part of the configuration. Adapters that nothing would ask for are refused.
func (o *oneAdapter) apply(cfg *config.Config) error {
	l := &cfg.LoRA
	switch {
	case o.path != "" && len(l.Modules) > 0:
		return cli.UsageError("--lora-modules beside --lora-path: all requests ask for that one")
	case o.path != "":
		l.Enable, l.Modules = true, []string{oneName + "=" + o.path}
	case l.Enable:
		return cli.UsageError("--enable-lora: say --lora-path, the adapter that is to answer")
	}
	return nil
}

// asking is an engine whose requests ask for the adapter of --lora-path, if there is one.
type asking struct {
	*replicas.Router
	adapter uint32
	control *adapters.Control
}

// openAsking starts an engine for a command that ends with it.
func openAsking(ctx context.Context, cfg config.Config) (a *asking, err error) {
	e, err := openEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	a = &asking{Router: e}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
		}
	}()
	a.control, err = newAdapters(ctx, &cfg, e, slog.New(slog.DiscardHandler))
	if err != nil || a.control == nil {
		return a, err
	}
	a.adapter, _, err = a.control.Acquire(ctx, oneName)
	return a, err
}

// Submit has the requests ask for the adapter.
func (a *asking) Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error) {
	for _, r := range list {
		r.Adapter = a.adapter
	}
	return a.Router.Submit(ctx, list...)
}

// Stop ends the engine.
func (a *asking) Stop(ctx context.Context) error {
	err := a.Router.Stop(ctx)
	if a.control != nil {
		a.control.Close()
	}
	return err
}
