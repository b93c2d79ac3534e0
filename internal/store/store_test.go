package store

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// clock is a time that tests set.
type clock struct{ t time.Time }

func newClock() *clock                        { return &clock{time.Unix(1_700_000_000, 0)} }
func (c *clock) now() time.Time               { return c.t }
func (c *clock) in(d time.Duration) time.Time { return c.t.Add(d) }

func open(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s := New(dir, o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(t *testing.T, s *Store, until time.Time, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if err := s.Put(pairs[i], []byte(pairs[i+1]), until); err != nil {
			t.Fatal(err)
		}
	}
}

// each is what Each of a store comes by, as "key=value".
func each(t *testing.T, s *Store, prefix, after string, reverse bool) (got []string) {
	t.Helper()
	if err := s.View(func(tx *Tx) error {
		tx.Each(prefix, after, reverse, func(key string, value []byte) bool {
			got = append(got, key+"="+string(value))
			return true
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestValuesOutliveTheirStore closes a store and opens its folder again.
func TestValuesOutliveTheirStore(t *testing.T) {
	dir := t.TempDir()
	s := New(dir, Options{})
	put(t, s, time.Time{}, "a", "1", "b", "2", "b", "3", "c", "")
	if err := s.Delete("a", "none"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put("d", nil, time.Time{}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed store: %v", err)
	}
	s = open(t, dir, Options{})
	if got := each(t, s, "", "", false); !slices.Equal(got, []string{"b=3", "c="}) {
		t.Errorf("%q", got)
	}
	if _, err := s.Get("a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted key: %v", err)
	}
}

// TestNothingBeforeUse wants no folder before the first call.
func TestNothingBeforeUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x", "y")
	s := open(t, dir, Options{})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := s.Open(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
}

// TestMemory wants a store without a folder to work, apart from others.
func TestMemory(t *testing.T) {
	a, b := open(t, "", Options{}), open(t, "", Options{})
	put(t, a, time.Time{}, "k", "a")
	put(t, b, time.Time{}, "k", "b")
	if v, err := a.Get("k"); err != nil || string(v) != "a" {
		t.Errorf("%q, %v", v, err)
	}
}

func TestEach(t *testing.T) {
	s := open(t, "", Options{})
	put(t, s, time.Time{}, "a", "0", "f/1", "1", "f/2", "2", "f/3", "3", "g", "4")
	for _, c := range []struct {
		prefix, after string
		reverse       bool
		want          string
	}{
		{"f/", "", false, "f/1=1 f/2=2 f/3=3"},
		{"f/", "", true, "f/3=3 f/2=2 f/1=1"},
		{"f/", "f/1", false, "f/2=2 f/3=3"},
		{"f/", "f/15", false, "f/2=2 f/3=3"},
		{"f/", "f/3", true, "f/2=2 f/1=1"},
		{"f/", "f/25", true, "f/2=2 f/1=1"},
		{"f/", "f/3", false, ""},
		{"f/", "f/1", true, ""},
		{"f/", "f/9", true, "f/3=3 f/2=2 f/1=1"},
		{"", "", true, "g=4 f/3=3 f/2=2 f/1=1 a=0"},
		{"h", "", true, ""},
		{"h", "", false, ""},
		{"A", "", true, ""},
		{"g", "", true, "g=4"},
	} {
		if got := strings.Join(each(t, s, c.prefix, c.after, c.reverse), " "); got != c.want {
			t.Errorf("%q after %q, reverse %v: %q instead of %q", c.prefix, c.after, c.reverse, got,
				c.want)
		}
	}
}

// TestExpiry wants values to be gone when their time has come, and their room to be given back.
func TestExpiry(t *testing.T) {
	c := newClock()
	s := open(t, "", Options{Now: c.now, MaxBytes: 1000})
	put(t, s, c.in(time.Minute), "short", "1", "changed", "2")
	put(t, s, c.in(time.Hour), "long", "3", "changed", "4")
	put(t, s, time.Time{}, "ever", "5")
	c.t = c.in(time.Minute)
	if _, err := s.Get("short"); !errors.Is(err, ErrNotFound) {
		t.Errorf("at its expiry: %v", err)
	}
	if got := each(t, s, "", "", false); !slices.Equal(got, []string{"changed=4", "ever=5",
		"long=3"}) {
		t.Errorf("%q", got)
	}
	c.t = c.in(time.Hour)
	if got := each(t, s, "", "", true); !slices.Equal(got, []string{"ever=5"}) {
		t.Errorf("%q", got)
	}
	// All that is left of them goes with the next update.
	if err := s.Delete("ever"); err != nil {
		t.Fatal(err)
	}
	if err := s.View(func(tx *Tx) error {
		k, _ := tx.values.Cursor().First()
		e, _ := tx.expiry.Cursor().First()
		if k != nil || e != nil || tx.bytes() != 0 {
			t.Errorf("left are %q and %q, %d bytes", k, e, tx.bytes())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFull wants a store to refuse what has no room, to keep what it has, and to make room of what
// has expired.
func TestFull(t *testing.T) {
	c := newClock()
	s := open(t, "", Options{Now: c.now, MaxBytes: 100_000})
	old := strings.Repeat("x", 900)
	for i := range 100 {
		put(t, s, c.in(time.Minute), fmt.Sprintf("%02d", i), old)
	}
	big := strings.Repeat("y", 90_000)
	if err := s.Put("big", []byte(big), time.Time{}); !errors.Is(err, ErrFull) {
		t.Errorf("a full store: %v", err)
	}
	if n := len(each(t, s, "", "", false)); n != 100 {
		t.Errorf("%d values are left", n)
	}
	c.t = c.in(time.Minute)
	put(t, s, time.Time{}, "big", big)
	// A value that takes another's place needs no room but the difference.
	put(t, s, time.Time{}, "big", big)
}

// TestUpdateIsAtomic wants nothing of an update that fails.
func TestUpdateIsAtomic(t *testing.T) {
	s := open(t, "", Options{})
	put(t, s, time.Time{}, "a", "1")
	fault := errors.New("a fault")
	err := s.Update(func(tx *Tx) error {
		return cmp.Or(tx.Put("a", []byte("2"), time.Time{}), tx.Put("b", nil, time.Time{}), fault)
	})
	if err != fault {
		t.Errorf("%v", err)
	}
	if got := each(t, s, "", "", false); !slices.Equal(got, []string{"a=1"}) {
		t.Errorf("%q", got)
	}
}

// TestInUse opens a store that another one has.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	first := New(dir, Options{})
	if err := first.Open(); err != nil {
		t.Fatal(err)
	}
	second := open(t, dir, Options{})
	if err := second.Open(); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), filepath.Join(dir, Name)) {
		t.Errorf("%v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Open(); err != nil {
		t.Errorf("once it is free: %v", err)
	}
}

// TestDamage wants an error that names the file, not a panic.
func TestDamage(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"not ours":  func([]byte) []byte { return bytes.Repeat([]byte("no store\n"), 9999) },
		"cut short": func(b []byte) []byte { return b[:100] },
		"both heads": func(b []byte) []byte {
			clear(b[:8192])
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, Name)
			s := New(dir, Options{})
			put(t, s, time.Time{}, "a", "1")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, change(b), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := open(t, dir, Options{}).Open(); err == nil ||
				!strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRandomWalk compares a store with a map, closing it now and then.
func TestRandomWalk(t *testing.T) {
	type entry struct {
		value string
		until time.Time
	}
	r := rand.New(rand.NewPCG(1, 2))
	c, dir, want := newClock(), t.TempDir(), map[string]entry{}
	s := New(dir, Options{Now: c.now})
	for range 400 {
		key := fmt.Sprintf("%d/%02d", r.IntN(3), r.IntN(30))
		switch r.IntN(10) {
		case 0:
			c.t = c.in(time.Minute)
		case 1, 2:
			delete(want, key)
			if err := s.Delete(key); err != nil {
				t.Fatal(err)
			}
		case 3:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = New(dir, Options{Now: c.now})
		default:
			e := entry{value: strings.Repeat("v", r.IntN(5000))}
			if r.IntN(2) == 0 {
				e.until = c.in(time.Duration(r.IntN(5)) * time.Minute)
			}
			want[key] = e
			put(t, s, e.until, key, e.value)
		}
		maps.DeleteFunc(want, func(_ string, e entry) bool {
			return !e.until.IsZero() && !e.until.After(c.t)
		})
		prefix := fmt.Sprintf("%d/", r.IntN(3))
		var keys []string
		for key, e := range want {
			if strings.HasPrefix(key, prefix) {
				keys = append(keys, key+"="+e.value)
			}
		}
		slices.Sort(keys)
		if got := each(t, s, prefix, "", false); !slices.Equal(got, keys) {
			t.Fatalf("%d keys instead of %d", len(got), len(keys))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestKill kills processes that write without a pause: what they were told is kept is there.
func TestKill(t *testing.T) {
	const folder = "EAGLERAY_TEST_STORE"
	if dir := os.Getenv(folder); dir != "" {
		s := New(dir, Options{})
		for i := 0; ; i++ {
			key := fmt.Sprintf("%d-%08d", os.Getpid(), i)
			if err := s.Update(func(tx *Tx) error {
				return cmp.Or(tx.Put(key, make([]byte, i%3000), time.Time{}),
					tx.Put("twin-"+key, nil, time.Time{}))
			}); err != nil {
				t.Fatal(err)
			}
			fmt.Println("kept", key)
		}
	}
	dir, kept := t.TempDir(), 0
	for round := range 5 {
		c := exec.Command(os.Args[0], "-test.run=^TestKill$")
		c.Env = append(os.Environ(), folder+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var keys []string
		for lines.Scan() {
			if key, ok := strings.CutPrefix(lines.Text(), "kept "); ok {
				keys = append(keys, key)
			}
			if len(keys) == 20+round*7 {
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = c.Wait() // says that it was killed
		kept += len(keys)
		s := New(dir, Options{})
		for _, key := range keys {
			if _, err := s.Get(key); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		all := len(each(t, s, "", "", false))
		if twins := len(each(t, s, "twin-", "", false)); 2*twins != all || twins < kept {
			t.Fatalf("%d twins of %d keys, %d were told to be kept", twins, all, kept)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIDsAreInOrder(t *testing.T) {
	last := ""
	for range 10_000 {
		id := NewID()
		if id <= last || len(id) != 32 {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
}
