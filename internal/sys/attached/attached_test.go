package attached

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// file writes a file of a test's folder.
func file(t *testing.T, name string, content []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o750); err != nil {
		t.Fatal(err)
	}
	return path
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// random are bytes that follow from a seed.
func random(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// unpacked is what is behind an executable.
func unpacked(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := Unpack(f, "test")
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if _, err := p.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(p)
	if err != nil {
		t.Fatal(err)
	}
	return b, nil
}

func TestAttach(t *testing.T) {
	base := random(1<<20, 1)
	like := bytes.Clone(base)
	copy(like[1000:], "another")
	for name, second := range map[string][]byte{"alike": like, "other": random(5000, 2),
		"empty": {}, "larger": append(random(3<<20, 3), base...)} {
		path := file(t, "base", base)
		past := time.Unix(1000, 0)
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
		var first []byte
		for _, p := range [][]byte{second, random(10, 4), second, second} {
			if err := Attach(path, file(t, "second", p)); err != nil {
				t.Fatal(err)
			}
			got, err := unpacked(t, path)
			if err != nil || !bytes.Equal(got, p) {
				t.Errorf("%s: %d bytes instead of %d, %v", name, len(got), len(p), err)
			}
			whole := contents(t, path)
			if !bytes.HasPrefix(whole, base) {
				t.Errorf("%s: the first program is another", name)
			}
			switch {
			case first == nil:
				first = whole
			case len(p) == len(second) && !bytes.Equal(whole, first):
				t.Errorf("%s: attached again it is another file", name)
			}
			if n := len(whole) - len(base); name == "alike" && n > 1000 {
				t.Errorf("what differs little takes %d bytes", n)
			}
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o750 ||
			!info.ModTime().Equal(past) {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
			t.Errorf("%s: %v are left", name, list)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	base := random(1<<16, 1)
	second := append(random(1<<12, 2), base[:1<<15]...)
	path := file(t, "base", base)
	if err := Attach(path, file(t, "second", second)); err != nil {
		t.Fatal(err)
	}
	whole := contents(t, path)
	changed := func(at int) []byte {
		b := bytes.Clone(whole)
		b[at] ^= 1
		return b
	}
	n := len(whole)
	for name, c := range map[string]struct {
		file []byte
		none bool
	}{
		"none":              {base, true},
		"empty":             {nil, true},
		"short":             {whole[:10], true},
		"cut off":           {whole[:n-1], true},
		"another magic":     {changed(n - 1), true},
		"another base":      {changed(len(base) / 4), false},
		"damaged frame":     {changed(len(base) + 2000), false},
		"damaged beginning": {changed(len(base)), false},
		"damaged sum":       {changed(n - 20), false},
		"damaged base size": {changed(n - int(trailerSize)), false},
		"damaged size":      {changed(n - int(trailerSize) + 16), false},
		"huge":              {changed(n - int(trailerSize) + 23), false},
		"cut in front":      {whole[1:], false},
	} {
		got, err := unpacked(t, file(t, "damaged", c.file))
		if err == nil || errors.Is(err, ErrNone) != c.none {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// TestUnpackExecutes executes what was unpacked, and leaves no descriptor and no mapping.
func TestUnpackExecutes(t *testing.T) {
	echo, err := exec.LookPath("echo")
	if err != nil {
		t.Skip(err)
	}
	path := file(t, "base", random(1<<16, 1))
	if err := Attach(path, echo); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		fds, _ := filepath.Glob("/proc/self/fd/*")
		return len(fds) + strings.Count(string(contents(t, "/proc/self/maps")), path)
	}
	before := count()
	for range 3 {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Unpack(f, "test")
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command("/proc/self/fd/3", "a word")
		c.ExtraFiles = []*os.File{p}
		if out, err := c.CombinedOutput(); err != nil || string(out) != "a word\n" {
			t.Errorf("%q, %v", out, err)
		}
		f.Close()
		p.Close()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors and mappings instead of %d", after, before)
	}
}
