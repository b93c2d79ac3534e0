package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// large is a file of weights that is too large for all of it to be in its sum: tensors of many
// sizes.
func large(t testing.TB, seed uint64) []byte {
	t.Helper()
	header, at := map[string]any{}, 0
	for i := range 300 {
		size := 4 << (i % 17)
		if i == 299 {
			size = 9 << 20
		}
		header[fmt.Sprintf("t%03d", i)] = map[string]any{"dtype": "BF16", "shape": []int{size / 2},
			"data_offsets": []int{at, at + size}}
		at += size
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	r := rand.New(rand.NewPCG(seed, 1))
	body := make([]byte, at)
	for i := 0; i+8 <= len(body); i += 8 {
		binary.LittleEndian.PutUint64(body[i:], r.Uint64())
	}
	return append(b, body...)
}

// place is where a tensor of large begins and ends.
func place(t testing.TB, file []byte, name string) (begin, end int) {
	t.Helper()
	tensors, err := ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return span(file, tensors[name].Data)
}

// modelOf is a folder with a configuration and the weights.
func modelOf(t testing.TB, weights []byte) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, weightsFile, weights)
	write(t, dir, "config.json", []byte(`{"a": 1}`))
	write(t, dir, "README.md", []byte("no part of it"))
	return dir
}

func write(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func hold(t testing.TB, dir string) *Pinned {
	t.Helper()
	h, err := Pin(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// TestIdentity: copies have one identity, and whatever a training changes makes another one, in
// each tensor alone, too.
func TestIdentity(t *testing.T) {
	weights := large(t, 1)
	if len(weights) <= wholeSum {
		t.Fatal("the file is small")
	}
	first := hold(t, modelOf(t, weights)).Files()
	if names := []string{first[0].Name, first[1].Name}; len(first) != 2 ||
		first[0].Name != "config.json" || first[1].Name != weightsFile {
		t.Fatalf("held: %v", names)
	}
	if again := hold(t, modelOf(t, weights)).Files(); !slices.Equal(again, first) ||
		Identity(again) != Identity(first) {
		t.Errorf("a copy is %v, not %v", again, first)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"shorter": func(b []byte) []byte { return b[:len(b)-1] },
		"header": func(b []byte) []byte {
			return bytes.Replace(b, []byte("t007"), []byte("u007"),
				1)
		},
	} {
		other := hold(t, modelOf(t, change(bytes.Clone(weights)))).Files()
		if other[1] == first[1] || other[0] != first[0] || Identity(other) == Identity(first) {
			t.Errorf("%s: %v", name, other)
		}
	}
	trained := large(t, 2)
	f, err := os.OpenFile(filepath.Join(modelOf(t, weights), weightsFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 300 {
		name := fmt.Sprintf("t%03d", i)
		begin, end := place(t, weights, name)
		_, err := f.WriteAt(trained[begin:end], int64(begin))
		sum, err2 := sumFile(f, weightsFile, int64(len(weights)))
		_, err3 := f.WriteAt(weights[begin:end], int64(begin))
		if err := errors.Join(err, err2, err3); err != nil || sum == first[1].Sum {
			t.Errorf("tensor %s of %d bytes is another: %v", name, end-begin, err)
		}
	}
}

// TestHeld changes a folder in each way, and says what is found: by the one that holds it, and by
// another process that knows what it wants.
func TestHeld(t *testing.T) {
	weights, trained := large(t, 1), large(t, 2)
	replace := func(dir string, content []byte) {
		write(t, dir, "new", content)
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir,
			weightsFile)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change        func(dir string)
		changed, lost bool
		// nothing says that it is found nowhere without a holder.
		nobody bool
	}{
		"nothing": {func(string) {}, false, false, false},
		"touched": {func(dir string) {
			if err := os.Chtimes(filepath.Join(dir, weightsFile), time.Time{},
				time.Now()); err != nil {
				t.Fatal(err)
			}
		}, false, false, false},
		"a copy":  {func(dir string) { replace(dir, weights) }, false, false, false},
		"another": {func(dir string) { replace(dir, trained) }, true, false, true},
		"removed": {func(dir string) { os.RemoveAll(dir) }, true, false, true},
		"overwritten": {func(dir string) { write(t, dir, weightsFile, trained) }, true,
			true, true},
		"cut": {func(dir string) { write(t, dir, weightsFile, weights[:1000]) },
			true, true, true},
		"overwritten, put back": {func(dir string) {
			write(t, dir, weightsFile,
				trained)
			replace(dir, weights)
		}, false, false, false},
		"configuration": {func(dir string) {
			write(t, dir, "config.json",
				[]byte(`{"a": 2}`))
		}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := modelOf(t, weights)
			h := hold(t, dir)
			files := h.Files()
			c.change(dir)
			for range 2 {
				changed, lost := h.Compare(true)
				if (changed != nil) != c.changed || (lost != nil) != c.lost {
					t.Errorf("changed: %v; lost: %v", changed, lost)
				}
				if lost != nil && !lost.Written {
					t.Errorf("%v", lost)
				}
			}
			for holder, found := range map[int]bool{os.Getpid(): !c.lost, -1: !c.nobody} {
				k := Known(dir, files, []int{holder}, func() (Folder, error) { return Dir(dir) })
				v, err := k.Map(weightsFile)
				raw, err2 := k.ReadFile("config.json")
				err = errors.Join(err, err2)
				if found != (err == nil) {
					t.Errorf("holder %d: %v", holder, err)
				}
				if err != nil {
					if bad := (*ChangedError)(nil); !errors.As(err, &bad) && !errors.Is(err,
						os.ErrNotExist) {
						t.Errorf("%v", err)
					}
				} else if !bytes.Equal(v.Data, weights) || string(raw) != `{"a": 1}` {
					t.Error("other content")
				}
				if v != nil {
					v.Close()
				}
			}
		})
	}
}

// TestWritten: a view knows that its file was written, touched or renamed, and once that is known
// it is asked again.
func TestWritten(t *testing.T) {
	dir := modelOf(t, large(t, 1))
	path := filepath.Join(dir, weightsFile)
	d, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := d.Map(weightsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for name, change := range map[string]func() error{
		"written": func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"touched": func() error { return os.Chtimes(path, time.Time{}, time.Now()) },
		"renamed": func() error { return os.Rename(path, path) },
	} {
		for v.Written() { // the clock of files ticks
			time.Sleep(10 * time.Millisecond)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if got := v.Written(); got != (name != "renamed") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func BenchmarkHold(b *testing.B) {
	dir := modelOf(b, large(b, 1))
	for b.Loop() {
		h, err := Pin(dir, true)
		if err != nil {
			b.Fatal(err)
		}
		h.Close()
	}
}
