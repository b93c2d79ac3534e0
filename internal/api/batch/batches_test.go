package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

const (
	owner    = "all"
	endpoint = "/u"
)

// rowServer is a scripted server of rows.
type rowServer struct {
	mu    sync.Mutex
	asked map[string]int // by custom_id
	// hold keeps rows whose line is above from an answer; released is closed to let them have one.
	above    int
	released chan struct{}
	began    chan string
}

func newServer() *rowServer {
	return &rowServer{asked: map[string]int{}, above: 1 << 30, released: make(chan struct{}),
		began: make(chan string, 10_000)}
}

func (s *rowServer) do(ctx context.Context, _ string, r *Row) (Answer, error) {
	s.began <- *r.CustomID
	if r.Line > s.above {
		select {
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		case <-s.released:
		}
	}
	s.mu.Lock()
	s.asked[*r.CustomID]++
	s.mu.Unlock()
	a := Answer{Status: 200, RequestID: "x",
		Body: json.RawMessage(
			`{"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`)}
	if strings.HasPrefix(*r.CustomID, "bad") {
		a.Status, a.Body = 400, json.RawMessage(`{"error":{"message":"bad"}}`)
	}
	return a, nil
}

// begun starts Batches in a folder; they end with the test, or by the function returned.
func begun(t *testing.T, dir string, s *rowServer, change ...func(*Options)) (*Batches, func()) {
	t.Helper()
	o := Options{Store: store.New(dir, store.Options{}), Dir: dir, Do: s.do, InFlight: 8,
		Answers: func(e string) bool { return e == endpoint },
		Serves:  func(m string) bool { return m == "m" },
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range change {
		f(&o)
	}
	b := New(o)
	b.Start()
	await(t, func() bool { return b.Ready() == nil })
	var once sync.Once
	end := func() {
		once.Do(func() {
			b.Close()
			if err := o.Store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(end)
	return b, end
}

const patience = 30 * time.Second

// await waits until something is so.
func await(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

func upload(t *testing.T, b *Batches, purpose, content string) File {
	t.Helper()
	u, err := b.Files.Begin(owner)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Abort()
	if _, err := io.WriteString(u, content); err != nil {
		t.Fatal(err)
	}
	f, err := u.Commit("in.jsonl", purpose, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func create(t *testing.T, b *Batches, content string) Batch {
	t.Helper()
	o, err := b.Create(owner, Request{InputFileID: upload(t, b, PurposeBatch, content).ID,
		Endpoint: endpoint, CompletionWindow: "24h", Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	if o.Status != Validating || *o.ExpiresAt <= o.CreatedAt || o.Metadata["k"] != "v" {
		t.Fatalf("%+v", o)
	}
	return o
}

// get is a batch once it is in one of the states.
func get(t *testing.T, b *Batches, id string, states ...Status) (o Batch) {
	t.Helper()
	await(t, func() bool {
		var err error
		if o, err = b.Get(owner, id); err != nil {
			t.Fatal(err)
		}
		for _, s := range states {
			if o.Status == s {
				return true
			}
		}
		if o.Status.over() {
			t.Fatalf("%+v", o)
		}
		return false
	})
	return o
}

// content are the lines of a file by their custom ids, none for no file.
func content(t *testing.T, b *Batches, id *string) map[string]outcome {
	t.Helper()
	all := map[string]outcome{}
	if id == nil {
		return all
	}
	r, f, err := b.Files.Content(owner, *id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil || int64(len(text)) != f.Bytes || f.Purpose != PurposeOutput ||
		f.ExpiresAt == nil {
		t.Fatalf("%d bytes of %+v, %v", len(text), f, err)
	}
	for line := range strings.Lines(string(text)) {
		var o outcome
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		if _, twice := all[*o.CustomID]; twice {
			t.Errorf("%s has two lines", *o.CustomID)
		}
		all[*o.CustomID] = o
	}
	return all
}

// left are the files in a folder, below it too.
func left(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func line(id, url, body string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":%s}`+"\n", id, url, body)
}

// TestStates takes batches to their ends, by what is in their inputs.
func TestStates(t *testing.T) {
	good := line("a", endpoint, `{"model":"m"}`)
	long := line("l", endpoint, `{"model":"`+strings.Repeat("m", 1<<20)+`"}`)
	for name, c := range map[string]struct {
		in     string
		status Status
		counts RequestCounts
		codes  string // of the problems, with lines; or of the error file
	}{
		"good":            {input(50), Completed, RequestCounts{50, 50, 0}, ""},
		"no last newline": {strings.TrimSpace(good), Completed, RequestCounts{1, 1, 0}, ""},
		"blank lines":     {"\n" + good + "\r\n\n", Completed, RequestCounts{1, 1, 0}, ""},
		"some fail": {good + line("bad", endpoint, `{}`), Completed, RequestCounts{2, 1, 1},
			"bad 400"},
		"all fail": {line("bad", endpoint, `{}`), Completed, RequestCounts{1, 0, 1},
			"bad 400"},
		"a stream": {line("s", endpoint, `{"stream":true}`), Completed, RequestCounts{1, 0,
			1}, "s invalid_value"},
		"empty":    {"", Failed, RequestCounts{}, "empty_file 0"},
		"blank":    {"\n \n", Failed, RequestCounts{}, "empty_file 0"},
		"not JSON": {good + "x\n", Failed, RequestCounts{2, 0, 0}, "invalid_json_line 2"},
		"twice": {good + "\n" + good, Failed, RequestCounts{2, 0, 0},
			"duplicate_custom_id 3"},
		"another url": {line("a", "/other", `{}`), Failed, RequestCounts{1, 0, 0},
			"url_mismatch 1"},
		"two models": {good + line("b", endpoint, `{"model":"n"}`), Failed, RequestCounts{2,
			0, 0}, "model_mismatch 2"},
		"not served": {line("b", endpoint, `{"model":"n"}`), Failed, RequestCounts{1, 0, 0},
			"model_not_found 0"},
		"no id": {`{"method":"POST","url":"/u","body":{}}`, Failed, RequestCounts{1, 0,
			0}, "missing_required_parameter 1"},
		"GET": {`{"custom_id":"a","method":"GET","url":"/u","body":{}}`, Failed,
			RequestCounts{1, 0, 0}, "invalid_method 1"},
		"too long": {good + long, Failed, RequestCounts{2, 0, 0}, "line_too_long 2"},
		"too many": {input(101), Failed, RequestCounts{101, 0, 0}, "too_many_tasks 0"},
		"many are wrong": {strings.Repeat("x\n", 100), Failed, RequestCounts{100, 0, 0},
			"100 of them"},
		"the first counts": {line("a", "/other", `{"model":"n"}`), Failed, RequestCounts{1, 0, 0},
			"url_mismatch 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newServer(), t.TempDir()
			b, _ := begun(t, dir, s, func(o *Options) { o.Limits.Rows = 100 })
			o := get(t, b, create(t, b, c.in).ID, c.status)
			if o.RequestCounts != c.counts {
				t.Errorf("counts %+v instead of %+v", o.RequestCounts, c.counts)
			}
			var codes []string
			if o.Errors != nil {
				for _, p := range o.Errors.Data {
					n := 0
					if p.Line != nil {
						n = *p.Line
					}
					codes = append(codes, fmt.Sprintf("%s %d", p.Code, n))
				}
			}
			for id, line := range content(t, b, o.ErrorFileID) {
				if line.Error != nil {
					codes = append(codes, id+" "+line.Error.Code)
				} else {
					codes = append(codes, fmt.Sprintf("%s %d", id, line.Response.Status))
				}
			}
			got := strings.Join(codes, ", ")
			if len(codes) > 9 {
				got = fmt.Sprintf("%d of them", len(codes))
			}
			if got != c.codes {
				t.Errorf("codes %q instead of %q", got, c.codes)
			}
			out := content(t, b, o.OutputFileID)
			if len(out) != c.counts.Completed || (o.OutputFileID == nil) != (len(out) == 0) {
				t.Errorf("%d answers, file %v", len(out), o.OutputFileID)
			}
			if n := int64(c.counts.Completed); n > 0 && (o.Usage.InputTokens != 2*n ||
				o.Usage.TotalTokens != 5*n) {
				t.Errorf("usage %+v", o.Usage)
			}
			if done := c.status == Completed; done != (o.CompletedAt != nil) ||
				done != (o.FinalizingAt != nil) || done != (o.InProgressAt != nil) ||
				done == (o.FailedAt != nil) || done != (o.Errors == nil) {
				t.Errorf("%+v", o)
			}
			await(t, func() bool { return left(t, b.folder()) == 0 })
			if _, err := b.Cancel(owner, o.ID); err == nil || !strings.Contains(err.Error(),
				"Cannot cancel") {
				t.Errorf("cancel afterwards: %v", err)
			}
		})
	}
}

// TestCancelAndExpiry ends batches of which some rows are answered, and others being asked: each
// row has one line.
func TestCancelAndExpiry(t *testing.T) {
	for name, c := range map[string]struct {
		status Status
		code   string
		window time.Duration
	}{"cancel": {Cancelled, CodeCancelled, time.Hour}, "expiry": {Expired, CodeExpired,
		2 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			s.above = 20
			b, _ := begun(t, t.TempDir(), s, func(o *Options) { o.CompletionWindow = c.window })
			o := create(t, b, input(50))
			await(t, func() bool {
				o, _ := b.Get(owner, o.ID)
				return o.RequestCounts.Completed == 20
			})
			if c.status == Cancelled {
				if o, err := b.Cancel(owner, o.ID); err != nil || o.Status != Cancelling &&
					o.Status != Cancelled || o.CancellingAt == nil {
					t.Fatalf("%+v, %v", o, err)
				}
			}
			o = get(t, b, o.ID, c.status)
			if o.RequestCounts != (RequestCounts{50, 20, 0}) ||
				(o.CancelledAt == nil) == (o.ExpiredAt == nil) {
				t.Errorf("%+v", o)
			}
			if n := len(content(t, b, o.OutputFileID)); n != 20 {
				t.Errorf("%d answers", n)
			}
			failures := content(t, b, o.ErrorFileID)
			for id, line := range failures {
				if line.Response != nil || line.Error.Code != c.code {
					t.Errorf("%s: %+v", id, line)
				}
			}
			if len(failures) != 30 {
				t.Errorf("%d rows are in the error file", len(failures))
			}
		})
	}
}

// TestCancelBeforeRows ends a batch whose input has not been read.
func TestCancelBeforeRows(t *testing.T) {
	b, end := begun(t, t.TempDir(), newServer())
	end() // nothing runs: what is created now would be read by the next Start
	dir := b.opt.Dir
	b, end = begun(t, dir, newServer())
	f := upload(t, b, PurposeBatch, input(3))
	b.stop() // nothing runs
	o, err := b.Create(owner, Request{InputFileID: f.ID, Endpoint: endpoint,
		CompletionWindow: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	if o, err = b.Cancel(owner, o.ID); err != nil || o.Status != Cancelling {
		t.Fatalf("%+v, %v", o, err)
	}
	end()
	s := newServer()
	b, _ = begun(t, dir, s)
	o = get(t, b, o.ID, Cancelled)
	if o.ErrorFileID != nil || o.OutputFileID != nil || len(s.asked) > 0 {
		t.Errorf("%+v", o)
	}
}

// TestRestart ends Batches again and again in the middle of two batches: no row is asked whose
// answer was kept, and each has one line at the end. The inputs are deleted meanwhile.
func TestRestart(t *testing.T) {
	dir, ids, asked := t.TempDir(), []string{}, map[string]int{}
	for round := range 6 {
		s := newServer()
		if s.above = (round + 1) * 15; round == 5 {
			s.above = 1 << 30
		}
		b, end := begun(t, dir, s, func(o *Options) { o.InFlight = 500 })
		if round == 0 {
			for range 2 {
				o := create(t, b, input(100))
				ids = append(ids, o.ID)
				if err := b.Files.Delete(owner, o.InputFileID); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, id := range ids {
			want := min(s.above, 100)
			await(t, func() bool {
				o, err := b.Get(owner, id)
				return err == nil && o.RequestCounts.Completed == want &&
					o.RequestCounts.Total == 100
			})
		}
		if round == 5 {
			for _, id := range ids {
				if n := len(content(t, b, get(t, b, id, Completed).OutputFileID)); n != 100 {
					t.Errorf("%d answers", n)
				}
			}
		}
		end()
		for id, n := range s.asked {
			asked[id] += n
		}
	}
	for id, n := range asked {
		if n != 2 { // by two batches
			t.Errorf("%s was answered %d times", id, n)
		}
	}
	if len(asked) != 100 {
		t.Errorf("%d rows", len(asked))
	}
}

// TestCrashWhileFinishing stops after the answers have got their places, and before anything says
// so.
func TestCrashWhileFinishing(t *testing.T) {
	dir, s := t.TempDir(), newServer()
	b, end := begun(t, dir, s)
	f := upload(t, b, PurposeBatch, input(10)+line("bad", endpoint, "{}"))
	b.stop() // nothing runs but what is called here
	o, err := b.Create(owner, Request{InputFileID: f.ID, Endpoint: endpoint,
		CompletionWindow: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { // its goroutine is over
		b.running.Wait()
		return true
	})
	b.ctx, b.stop = context.WithCancel(context.Background())
	r := b.jobs[o.ID].record()
	j := newJob(b, &r)
	for j.ending() == "" {
		if err := j.step(); err != nil {
			t.Fatal(err)
		}
	}
	r = j.record()
	if err := os.Rename(b.path(o.ID, ".out"), b.Files.path(r.Output)); err != nil {
		t.Fatal(err)
	}
	end()
	s = newServer()
	b, _ = begun(t, dir, s)
	o = get(t, b, o.ID, Completed)
	if n, m := len(content(t, b, o.OutputFileID)), len(content(t, b, o.ErrorFileID)); n != 10 ||
		m != 1 || len(s.asked) != 0 {
		t.Errorf("%d answers, %d failures, %d rows asked again", n, m, len(s.asked))
	}
}

// TestCancelNotKept refuses to cancel a batch where that cannot be kept: it goes on.
func TestCancelNotKept(t *testing.T) {
	s := newServer()
	s.above = 0
	b, _ := begun(t, t.TempDir(), s)
	o := create(t, b, input(3))
	get(t, b, o.ID, InProgress)
	if err := b.opt.Store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := b.Cancel(owner, o.ID)
	refusedWith(t, err, 503, "")
	b.mu.Lock()
	j := b.jobs[o.ID]
	b.mu.Unlock()
	if now := j.now(); now.Status != InProgress || j.rows.Err() != nil {
		t.Errorf("the batch is %s, its rows: %v", now.Status, context.Cause(j.rows))
	}
}

func refusedWith(t *testing.T, err error, status int, param string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || e.Param != param || e.Message == "" {
		t.Errorf("%v: %+v instead of status %d, param %q", err, e, status, param)
	}
}

// TestLimits goes over each of them.
func TestLimits(t *testing.T) {
	s := newServer()
	s.above = 0
	b, _ := begun(t, t.TempDir(), s, func(o *Options) {
		o.Limits = Limits{FileBytes: 1000, Files: 4, OwnerBytes: 2000, Uploads: 2, InputBytes: 500,
			Active: 1}
	})
	u, err := b.Files.Begin(owner)
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.Files.Begin(owner)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Files.Begin(owner)
	refusedWith(t, err, 429, "")
	v.Abort()
	_, err = u.Write(make([]byte, 1001))
	refusedWith(t, err, 413, "file")
	if _, err := u.Write(make([]byte, 600)); err != nil {
		t.Fatal(err)
	}
	_, err = u.Commit("x", PurposeBatch, 0)
	refusedWith(t, err, 400, "file")
	u.Abort()
	u.Abort()
	if n := left(t, b.Files.tmp()) + left(t, filepath.Join(b.opt.Dir, "files")); n != 0 {
		t.Errorf("%d files are left", n)
	}
	in := upload(t, b, PurposeBatch, input(5))
	q := Request{InputFileID: in.ID, Endpoint: endpoint, CompletionWindow: "24h"}
	if _, err := b.Create(owner, q); err != nil {
		t.Fatal(err)
	}
	_, err = b.Create(owner, q)
	refusedWith(t, err, 429, "")
	_, err = b.Create("other", q)
	refusedWith(t, err, 404, "input_file_id")
	upload(t, b, PurposeUser, strings.Repeat("x", 900))
	if u, err = b.Files.Begin(owner); err != nil {
		t.Fatal(err)
	}
	defer u.Abort()
	_, err = u.Write(make([]byte, 900))
	refusedWith(t, err, 413, "file")
	upload(t, b, PurposeUser, "1")
	upload(t, b, PurposeUser, "2")
	_, err = b.Files.Begin(owner)
	refusedWith(t, err, 400, "file")
}

// TestFilesOfOwners are seen by their owners only.
func TestFilesOfOwners(t *testing.T) {
	b, _ := begun(t, t.TempDir(), newServer())
	f := upload(t, b, PurposeBatch, input(1))
	o := create(t, b, input(1))
	_, err := b.Files.Get("other", f.ID)
	refusedWith(t, err, 404, "id")
	_, _, err = b.Files.Content("other", f.ID)
	refusedWith(t, err, 404, "id")
	refusedWith(t, b.Files.Delete("other", f.ID), 404, "id")
	_, err = b.Get("other", o.ID)
	refusedWith(t, err, 404, "batch_id")
	_, err = b.Cancel("other", o.ID)
	refusedWith(t, err, 404, "batch_id")
	if files, _, err := b.Files.List("other", "", Page{Limit: 10}); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
	if list, _, err := b.List("other", Page{Limit: 10}); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	for _, id := range []string{"", "file-", "file-../../state.db", "file-" + strings.Repeat("g",
		32), f.ID + "0", o.ID} {
		_, err := b.Files.Get(owner, id)
		refusedWith(t, err, 404, "id")
	}
}

// TestSweep removes what nothing refers to, and keeps the rest.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	b, end := begun(t, dir, newServer())
	f := upload(t, b, PurposeUser, "kept")
	end()
	for _, path := range []string{b.Files.path("file-orphan"), b.path("batch_orphan", ".in"),
		b.Files.tmp() + "/half"} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, _ = begun(t, dir, newServer())
	await(t, func() bool { return left(t, dir) == 2 }) // the file, and the store
	if got, err := b.Files.Get(owner, f.ID); err != nil || got.ID != f.ID || got.Bytes != 4 ||
		got.ExpiresAt != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := os.Stat(b.Files.path(f.ID)); err != nil {
		t.Error(err)
	}
}

// TestStoreInUse wants a server whose store another one has to wait for it.
func TestStoreInUse(t *testing.T) {
	dir := t.TempDir()
	other := store.New(dir, store.Options{})
	if err := other.Open(); err != nil {
		t.Fatal(err)
	}
	st := store.New(dir, store.Options{})
	b := New(Options{Store: st, Dir: dir})
	b.Start()
	refusedWith(t, b.Ready(), 503, "")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return b.Ready() == nil })
	b.Close()
	refusedWith(t, b.Ready(), 503, "")
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNothingLeaks counts goroutines and descriptors after batches of all kinds.
func TestNothingLeaks(t *testing.T) {
	count := func() (int, int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	round := func() {
		s := newServer()
		s.above = 10
		b, end := begun(t, t.TempDir(), s)
		get(t, b, create(t, b, input(10)).ID, Completed)
		get(t, b, create(t, b, "x").ID, Failed)
		o := create(t, b, input(30))
		get(t, b, o.ID, InProgress)
		if _, err := b.Cancel(owner, o.ID); err != nil {
			t.Fatal(err)
		}
		get(t, b, o.ID, Cancelled)
		create(t, b, input(30)) // cut by the end
		end()
	}
	round()
	g, fds := count()
	round()
	await(t, func() bool {
		g2, fds2 := count()
		return g2 <= g && fds2 <= fds
	})
}
