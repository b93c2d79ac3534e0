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

// fill writes a store with pages of all kinds: branches, values over several pages, free ones,
// buckets that lie in a leaf and outside. It returns the file's bytes and the keys.
func fill(t testing.TB, rng *rand.Rand) (file []byte, keys []string) {
	t.Helper()
	dir := t.TempDir()
	s := New(dir, Options{})
	for range 4 {
		if err := s.Update(func(tx *Tx) error {
			for range 120 {
				key := fmt.Sprintf("key-%04d", rng.IntN(500))
				size := rng.IntN(60)
				if rng.IntN(30) == 0 {
					size = rng.IntN(20000)
				}
				until := time.Time{}
				if rng.IntN(3) == 0 {
					until = time.Now().Add(time.Hour)
				}
				if err := tx.Put(key, make([]byte, size), until); err != nil {
					return err
				}
				keys = append(keys, key)
			}
			return tx.Delete(keys[rng.IntN(len(keys))])
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := guard(func() error {
		f, err := os.Open(filepath.Join(dir, Name))
		if err != nil {
			return err
		}
		defer f.Close()
		return check(f)
	}); err != nil {
		t.Fatalf("a sound file: %v", err)
	}
	return file, keys
}

// survives opens a store of a damaged file, and uses all of it: nothing panics, and what is damaged
// is set aside, with one word on it. It says whether that was so.
func survives(t *testing.T, file []byte, keys []string) (aside bool) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	told := ""
	s := New(dir, Options{Damaged: func(_, where string, cause error) {
		told += where + ": " +
			cause.Error() + "\n"
	}})
	defer s.Close()
	use := func() {
		each(t, s, "", "", false)
		each(t, s, "", "", true)
		for _, key := range keys[:20] {
			if _, err := s.Get(key); err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("get: %v", err)
			}
		}
		// A value that became a bucket cannot be put again: what is refused alone is no damage to
		// others.
		if err := s.Put("new", []byte("value"), time.Now().Add(time.Minute)); err != nil {
			t.Fatalf("put: %v", err)
		}
		if v, err := s.Get("new"); err != nil || string(v) != "value" {
			t.Fatalf("get what was put: %q, %v", v, err)
		}
	}
	use()
	old, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(old) != strings.Count(told, "\n") || len(old) > 1 {
		t.Fatalf("set aside: %v, %v; told %q", old, err, told)
	}
	if len(old) > 0 {
		if kept, err := os.ReadFile(old[0]); err != nil || !bytes.Equal(kept, file) ||
			!strings.HasPrefix(told, old[0]) {
			t.Fatalf("%s is not what was there: %v", old[0], err)
		}
	}
	return len(old) > 0
}

// TestDamage cuts files anywhere, and overwrites, swaps and flips what is in them.
func TestDamage(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	file, keys := fill(t, rng)
	const page = 4096
	pages := len(file) / page
	if pages < 30 {
		t.Fatalf("only %d pages", pages)
	}
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	for name, c := range map[string]struct {
		n      int
		must   bool // be set aside
		change func(i int, b []byte) []byte
	}{
		"not ours": {1, true, func(int,
			[]byte) []byte {
			return bytes.Repeat([]byte("no store\n"), 9999)
		}},
		"both heads": {1, true, func(_ int, b []byte) []byte { clear(b[:2*page]); return b }},
		"a head": {2, false, func(i int,
			b []byte) []byte {
			clear(b[i*page:][:page])
			return b
		}},
		"cut to pages": {rounds, false, func(i int,
			b []byte) []byte {
			return b[:(1+i*pages/rounds)*page]
		}},
		"cut": {rounds, false, func(_ int,
			b []byte) []byte {
			return b[:1+rng.IntN(len(b)-1)]
		}},
		"a page of zeros": {rounds, false, func(i int,
			b []byte) []byte {
			clear(b[(2+i*(pages-2)/rounds)*page:][:page])
			return b
		}},
		"a page of noise": {rounds, false, func(_ int, b []byte) []byte {
			noise := b[(2+rng.IntN(pages-2))*page:][:page]
			for i := range noise {
				noise[i] = byte(rng.Uint32())
			}
			return b
		}},
		"pages swapped": {rounds, false, func(_ int, b []byte) []byte {
			x, y := b[(2+rng.IntN(pages-2))*page:][:page], b[(2+rng.IntN(pages-2))*page:][:page]
			was := bytes.Clone(x)
			copy(x, y)
			copy(y, was)
			return b
		}},
		"bits in heads of pages": {5 * rounds, false, func(_ int, b []byte) []byte {
			for range 1 + rng.IntN(6) {
				b[rng.IntN(pages)*page+rng.IntN(64)] ^= 1 << rng.IntN(8)
			}
			return b
		}},
		"bits anywhere": {rounds, false, func(_ int, b []byte) []byte {
			for range 40 {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
			return b
		}},
	} {
		aside := 0
		for i := range c.n {
			if survives(t, c.change(i, bytes.Clone(file)), keys) {
				aside++
			}
		}
		t.Logf("%s: %d of %d set aside", name, aside, c.n)
		if c.must && aside != c.n {
			t.Errorf("%s: %d of %d set aside", name, aside, c.n)
		}
	}
}

// TestDamageInUse cuts the file of a store that is open: the call that finds it fails, and those
// after it have an empty store.
func TestDamageInUse(t *testing.T) {
	file, keys := fill(t, rand.New(rand.NewPCG(3, 4)))
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	told := 0
	s := open(t, dir, Options{Damaged: func(string, string, error) { told++ }})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(keys[0]); err == nil || errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("what is not there was read: %v", err)
	}
	if _, err := s.Get(keys[0]); !errors.Is(err, ErrNotFound) || told != 1 {
		t.Errorf("afterwards: %v, told %d times", err, told)
	}
	put(t, s, time.Time{}, "a", "1")
}

// FuzzDamage overwrites some bytes of a file.
func FuzzDamage(f *testing.F) {
	f.Add(uint32(8192), []byte{1, 2, 3})
	f.Add(uint32(0), make([]byte, 100))
	sound, keys := fill(f, rand.New(rand.NewPCG(5, 6)))
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		file := bytes.Clone(sound)
		copy(file[int(at)%len(file):], with)
		survives(t, file, keys)
	})
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

// TestEachByExpiry: what expires next comes first; what has expired, or never does, does not come.
func TestEachByExpiry(t *testing.T) {
	now := newClock()
	s := open(t, t.TempDir(), Options{Now: now.now})
	put(t, s, now.in(3*time.Hour), "a", "1", "b", "2")
	put(t, s, now.in(2*time.Hour), "c", "3", "a", "4")
	put(t, s, now.in(time.Minute), "d", "5")
	put(t, s, time.Time{}, "e", "6")
	now.t = now.in(time.Hour)
	var got []string
	if err := s.View(func(tx *Tx) error {
		tx.EachByExpiry(func(key string, value []byte) bool {
			got = append(got, key+"="+string(value))
			return key != "c"
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []string{"a=4", "c=3"}) {
		t.Errorf("%q", got)
	}
}
