package chaos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
)

// folder is a copy of the model that is served, so that its weights can be replaced.
type folder struct {
	// path is the copy's; temporary is what there is of it, other content included.
	path, temporary string
	// weights is the name of a file in it, sound and other are files with its content and with
	// another one.
	weights, sound, other string
}

// copied is a model of which a copy can be served.
var copied = &need{how: "ranks in processes of the server's own (no Ray), the built-in model or " +
	"a folder with safetensors, and --on-model-change keep",
	met: func(o Options) bool {
		c := settings(o.Args)
		dir := model(c)
		files, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		return !onRay(o) && c.Recovery.OnModelChange == "keep" && (dir == "" || len(files) > 0) &&
			c.Model.LoadFormat != "dummy"
	}}

// model is the folder that is served, "" for the built-in one.
func model(c config.Config) string {
	if _, err := os.Stat(c.Model.Path); err != nil && c.Model.Path == builtin.Name {
		return ""
	}
	return c.Model.Path
}

// newFolder makes a copy of the model, and the arguments those of a server of it: of links, but for
// the built-in one. It is nil when no fault needs one.
func newFolder(o *Options) (*folder, error) {
	if !slices.Contains(o.Faults, "replace") {
		return nil, nil
	}
	temporary, err := os.MkdirTemp("", "eagleray-chaos-*")
	if err != nil {
		return nil, err
	}
	f := &folder{temporary: temporary, path: filepath.Join(temporary, "model"),
		other: filepath.Join(temporary, "other")}
	c := settings(o.Args)
	dir := model(c)
	if dir == "" {
		dir = filepath.Join(temporary, builtin.Name)
		err = extract(dir)
	}
	if err == nil {
		err = f.link(dir)
	}
	if err == nil {
		err = writeOther(f.other, f.sound)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a copy of the model: %w", err), f.remove())
	}
	if c.Model.Path == "" {
		o.Args = append([]string{f.path}, o.Args...)
		return f, nil
	}
	o.Args = slices.Clone(o.Args)
	for i, a := range o.Args {
		flag, named := strings.CutSuffix(a, c.Model.Path)
		if named && (flag == "" || flag == "--model=") {
			o.Args[i] = flag + f.path
		}
	}
	return f, nil
}

// remove removes what newFolder made. A nil folder has nothing.
func (f *folder) remove() error {
	if f == nil {
		return nil
	}
	return os.RemoveAll(f.temporary)
}

// extract writes the files of the built-in model.
func extract(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	from := builtin.Folder()
	for _, name := range from.Names() {
		file, err := from.Map(name)
		if err != nil {
			return err
		}
		err = errors.Join(os.WriteFile(filepath.Join(dir, name), file.Data, 0o600), file.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

// link fills the copy with links to what is in a folder. The smallest file of weights is the one to
// replace.
func (f *folder) link(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := os.Mkdir(f.path, 0o700); err != nil {
		return err
	}
	smallest := int64(-1)
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if err := os.Symlink(at, filepath.Join(f.path, e.Name())); err != nil {
			return err
		}
		if filepath.Ext(at) != ".safetensors" {
			continue
		}
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if smallest < 0 || info.Size() < smallest {
			smallest, f.weights, f.sound = info.Size(), e.Name(), at
		}
	}
	if smallest < 0 {
		return fmt.Errorf("%s has no file of safetensors", dir)
	}
	return nil
}

// writeOther writes weights of the same shapes and of other values: every second byte of all
// tensors has another highest bit, which is the sign of elements of two bytes, and makes none
// infinite.
func writeOther(other, sound string) error {
	raw, err := os.ReadFile(sound)
	if err != nil {
		return err
	}
	if len(raw) < 8 || binary.LittleEndian.Uint64(raw) > uint64(len(raw)-8) {
		return fmt.Errorf("%s is no file of safetensors", sound)
	}
	tensors := raw[8+binary.LittleEndian.Uint64(raw):]
	for i := 1; i < len(tensors); i += 2 {
		tensors[i] ^= 0x80
	}
	return os.WriteFile(other, raw, 0o600)
}

// put replaces the file of weights as a download does: at once, by renaming.
func (f *folder) put(content string) error {
	at := filepath.Join(f.path, f.weights)
	if err := os.Symlink(content, at+".new"); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// replaceFiles replaces weights of the server's model by others, and kills a rank, or all: those
// that take their places answer as before. Then the weights are put back.
func replaceFiles(v *victim) (err error) {
	if err := v.s.folder.put(v.s.folder.other); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.s.folder.put(v.s.folder.sound)) }()
	kill := killAll
	if v.rng.IntN(2) == 0 {
		kill = func(v *victim) error { return v.signal(syscall.SIGKILL) }
	}
	if err := kill(v); err != nil {
		return err
	}
	return v.s.calm(v.ctx, v.l)
}
