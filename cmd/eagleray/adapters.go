package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

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
			if errors.Is(err, hub.ErrNotFound) || errors.Is(err, hub.ErrOffline) {
				return "", fmt.Errorf("%w: %w", adapters.ErrUnknown, err)
			}
			return dir, err
		}
		o.Fetch = func(ctx context.Context, name string) (string, error) {
			if !repoOf(name, org) {
				return "", nil
			}
			return o.Resolve(ctx, name)
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

// repoOf says that a name is that of a repo of the Hub, of an organisation unless that is "".
func repoOf(name, org string) bool {
	owner, repo, two := strings.Cut(name, "/")
	return two && owner != "" && repo != "" && !strings.Contains(repo, "/") &&
		filepath.IsLocal(name) && (org == "" || owner == org)
}
