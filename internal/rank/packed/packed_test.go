package packed

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// sample is entries of the given sizes.
func sample(sizes ...int) []layers.Entry {
	list := []layers.Entry{{Key: "table", Parts: []compute.Packed{{Form: []byte("sums")}}}}
	for i, n := range sizes {
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(j*7 + j>>8 + i)
		}
		list = append(list, layers.Entry{Key: "weight " + string(rune('a'+i)), Read: int64(n + i),
			Parts: []compute.Packed{{Form: []byte{byte(i)}, Data: data},
				{Form: []byte("half"), Data: data[:n/2]}}})
	}
	return list
}

func never() bool { return false }

// TestFile stores entries of sizes around those of pages and pieces, and wants them again.
func TestFile(t *testing.T) {
	for _, sizes := range [][]int{{}, {1}, {page, 2}, {pieceSize - page, 5},
		{pieceSize - page - 1, pieceSize + 1, 3*pieceSize + page}} {
		dir, key := filepath.Join(t.TempDir(), "made", "for it"), Key("a", "b")
		want := sample(sizes...)
		if _, err := Open(dir, key, 2); !IsMissing(err) {
			t.Fatalf("without a file: %v", err)
		}
		if err := Save(dir, key, want, false, never); err != nil {
			t.Fatal(err)
		}
		f, err := Open(dir, key, 2)
		if err != nil {
			t.Fatalf("%v: %v", sizes, err)
		}
		for _, e := range want {
			got, ok := f.Entry(e.Key)
			if !ok || got.Read != e.Read || len(got.Parts) != len(e.Parts) {
				t.Fatalf("%v: entry %q is %d bytes in %d parts, ok=%v", sizes, e.Key, got.Read,
					len(got.Parts), ok)
			}
			for i := range e.Parts {
				if !bytes.Equal(got.Parts[i].Form, e.Parts[i].Form) ||
					!bytes.Equal(got.Parts[i].Data, e.Parts[i].Data) {
					t.Errorf("%v: part %d of %q differs", sizes, i, e.Key)
				}
			}
		}
		if _, ok := f.Entry("other"); ok {
			t.Error("an entry that nobody stored")
		}
		f.Close()
		if left := names(t, dir); len(left) != 2 || left[0] != key+suffix {
			t.Errorf("the folder has %q", left)
		}
	}
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestDamaged wants a file that is not as it was written refused and removed, wherever it is not.
func TestDamaged(t *testing.T) {
	dir, key := t.TempDir(), Key("x")
	path := pathOf(dir, key)
	if err := Save(dir, key, sample(pieceSize, 3*page), false, never); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(sound)
		b[(at+len(b))%len(b)] ^= 4
		return b
	}
	for what, content := range map[string][]byte{
		"nothing": {}, "half a header": sound[:20], "cut": sound[:len(sound)-1],
		"cut in the data": sound[:2*page], "longer": append(bytes.Clone(sound), 0),
		"magic": flip(0), "key": flip(20), "size": flip(50), "sum": flip(71), "index": flip(-9),
		"first byte": flip(page), "second piece": flip(pieceSize + 77),
		"another program's": bytes.Repeat([]byte("text"), 5000),
		"zeros":             make([]byte, len(sound)),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if f, err := Open(dir, key, 2); !errors.Is(err, ErrDamaged) || f != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file is there: %v", what, err)
		}
	}
	other := Key("y")
	if err := os.WriteFile(pathOf(dir, other), sound, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, other, 2); !errors.Is(err, ErrDamaged) {
		t.Errorf("the file of another key: %v", err)
	}
	if err := os.WriteFile(path, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, key, 2)
	if err != nil {
		t.Fatalf("as it was written: %v", err)
	}
	f.Close()
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, key, 2); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a file that anybody can write: %v", err)
	}
}

// TestChecked wants bytes compared again once the file was written, and only then.
func TestChecked(t *testing.T) {
	dir, key := t.TempDir(), Key("x")
	if err := Save(dir, key, sample(3*page), false, never); err != nil {
		t.Fatal(err)
	}
	path := pathOf(dir, key)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("other"), 2*page); err != nil {
		t.Fatal(err)
	}
	// What a disk has lost without being written shows at the first comparison only.
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	file, err := Open(dir, key, 2)
	if err != nil {
		t.Fatalf("after it was compared: %v", err)
	}
	file.Close()
	if err := os.WriteFile(path+checkedSuffix, []byte(strings.Replace(stamp(f), "-", "_", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, key, 2); !errors.Is(err, ErrDamaged) {
		t.Errorf("after the machine was started again: %v", err)
	}
}

// TestLaterFile wants a file of a later time, as after the clock was set back, to hold up no start.
func TestLaterFile(t *testing.T) {
	dir, key := t.TempDir(), Key("x")
	if err := Save(dir, key, sample(page), false, never); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(30 * time.Second)
	if err := os.Chtimes(pathOf(dir, key), later, later); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	file, err := Open(dir, key, 1)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestSave wants one writer at a time, what is there left alone unless it is to be replaced, and
// nothing left of what ended early.
func TestSave(t *testing.T) {
	dir, key := t.TempDir(), Key("x")
	other, err := lockPart(pathOf(dir, key) + partSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, key, sample(10), false, never); !errors.Is(err, ErrBusy) {
		t.Errorf("while another writes: %v", err)
	}
	other.Close() // as when it is killed
	if err := Save(dir, key, sample(10), false, never); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(pathOf(dir, key))
	for _, replace := range []bool{false, true} {
		if err := Save(dir, key, sample(20000), replace, never); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(pathOf(dir, key))
		if err != nil || bytes.Equal(before, after) == replace {
			t.Errorf("replace=%v: equal=%v, %v", replace, bytes.Equal(before, after), err)
		}
	}
	calls := 0
	stop := func() bool { calls++; return calls == 2 }
	if err := Save(dir, Key("y"), sample(3*pieceSize), false, stop); !IsStopped(err) {
		t.Errorf("stopped: %v", err)
	}
	old := time.Now().Add(-2 * unusedFor)
	if err := os.Chtimes(pathOf(dir, key), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pathOf(dir, "left")+partSuffix, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "theirs.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, Key("z"), sample(3), false, never); err != nil {
		t.Fatal(err)
	}
	want := []string{Key("z") + suffix, Key("z") + suffix + checkedSuffix, "theirs.txt"}
	if got := names(t, dir); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the folder has %q, want %q", got, want)
	}
}

// TestNoRoom wants an error, and nothing left, where a folder or a disk takes no file.
func TestNoRoom(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Save(filepath.Join(blocked, "in"), Key("x"), sample(1), false, never); err == nil {
		t.Error("a folder below a file was made")
	}
	dir := t.TempDir()
	huge := sample(1)
	one := huge[1].Parts[0]
	for range 1 << 16 {
		huge[1].Parts = append(huge[1].Parts, one)
	}
	w := &writer{stop: never}
	var err error
	if w.f, err = os.Create(filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	defer w.f.Close()
	w.free = func(*os.File) (int64, error) { return 256 << 20, nil }
	if err := w.write(Key("x"), huge); err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("256 MB for %d parts: %v", len(huge[1].Parts), err)
	}
}
