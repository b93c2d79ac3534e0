package engine

import (
	"path/filepath"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// resolve finds the model's folder, downloading it when it is a Hub repo.
func (b *opening) resolve() error {
	m := &b.cfg.Model
	b.info.Names = m.ServedNames
	if m.Path == "" {
		b.folder = builtin.Folder()
		b.info.Root = builtin.Name
	} else {
		dir, err := b.download(m.Path)
		if err != nil {
			return err
		}
		if b.folder, err = checkpoint.Dir(dir); err != nil {
			return err
		}
		// Ranks of another folder, as Ray's are, must find it too.
		b.fromHub = dir != m.Path
		if b.dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		b.info.Root = m.Path
	}
	if len(b.info.Names) == 0 {
		b.info.Names = []string{b.info.Root}
	}
	return nil
}

func (b *opening) download(name string) (string, error) {
	return hub.Resolve(b.ctx, name, hub.Options{
		Revision: b.cfg.Model.Revision, DownloadDir: b.cfg.Model.DownloadDir,
		Progress: func(p hub.Progress) {
			b.progress(-1, "download "+p.File, p.AllDone, p.AllTotal)
		},
		Warn: func(text string) { b.opt.Log.Warn(text) },
		Ask:  func(hub string) { b.events.Emit(status.HubLookup{Repo: name, Hub: hub}) },
	})
}
