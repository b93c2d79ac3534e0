package open

import (
	"cmp"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// locate puts what the model is in the place of what it is called, see hub.Locate. Clients call a
// folder of the Hub's cache by the name of its repository.
func (r *resolver) locate() error {
	m := &r.Config.Model
	at, err := hub.Locate(m.Path, m.Revision)
	if err != nil {
		return err
	}
	m.Path, m.Revision = at.Model, cmp.Or(m.Revision, at.Revision)
	if at.Repo != "" && len(m.ServedNames) == 0 {
		m.ServedNames = []string{at.Repo}
	}
	return nil
}

// resolve finds the model's folder, or its file of GGUF, downloading it when it is a Hub repo.
func (r *resolver) resolve() error {
	m := &r.Config.Model
	r.Info.Names = m.ServedNames
	if m.Path == "" {
		r.folder = builtin.Folder()
		r.Info.Root = builtin.Name
	} else {
		dir, err := r.download(m.Path, m.Revision)
		if err != nil {
			return err
		}
		if r.folder, err = checkpoint.Dir(dir); err != nil {
			return err
		}
		// Ranks of another folder, as Ray's are, must find it too.
		r.fromHub = dir != m.Path
		if r.dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		r.Info.Root = m.Path
	}
	if len(r.Info.Names) == 0 {
		name := r.Info.Root
		if !r.fromHub && checkpoint.IsGGUF(name) { // as llama.cpp's server calls it
			name = filepath.Base(name)
		}
		r.Info.Names = []string{name}
	}
	return nil
}

func (r *resolver) download(name, revision string) (string, error) {
	return hub.Resolve(r.ctx, name, hub.Options{
		Revision: revision, DownloadDir: r.Config.Model.DownloadDir,
		Progress: func(p hub.Progress) {
			r.progress(-1, "download "+p.File, p.AllDone, p.AllTotal)
		},
		Warn: func(text string) { r.log.Warn(text) },
		Ask:  func(hub string) { r.events.Emit(status.HubLookup{Repo: name, Hub: hub}) },
	})
}
