package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// Options of Batches. Store, Dir, Do and Answers are needed.
type Options struct {
	Store *store.Store
	// Dir is the folder of contents: no other program writes there.
	Dir string
	// Do asks a row of an owner.
	Do func(ctx context.Context, owner string, r *Row) (Answer, error)
	// Answers says which endpoints batches may have, Serves which models; a nil Serves is all.
	Answers, Serves func(name string) bool
	// InFlight bounds the rows of all batches that are asked at a time; 0 is 64.
	InFlight int
	// CompletionWindow is how long a batch may take: 24 h.
	CompletionWindow time.Duration
	Limits           Limits
	Log              *slog.Logger
}

// Batches answers OpenAI's Batch API. What it has acknowledged outlives the process: Start goes on
// with the batches of an earlier one. It is safe for concurrent use.
type Batches struct {
	Files *Files

	opt     Options
	lim     Limits
	log     *slog.Logger
	limiter *Limiter

	// ctx is that of all batches, running those that are under way, and the sweeper.
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	jobs    map[string]*job
	started bool
	closed  bool
}

// record is what is kept of a batch.
type record struct {
	Batch
	Owner string `json:"owner"`
	// OutputLifetime is in seconds.
	OutputLifetime int64 `json:"output_lifetime"`
	// End is the state that follows once the files of its answers have their places, "" before that
	// is known. Output and Failures are their ids, "" for none.
	End      Status `json:"end,omitempty"`
	Output   string `json:"output,omitempty"`
	Failures string `json:"failures,omitempty"`
}

// New makes Batches; Start begins with them.
func New(o Options) *Batches {
	if o.InFlight == 0 {
		o.InFlight = 64
	}
	if o.CompletionWindow == 0 {
		o.CompletionWindow = 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	lim := o.Limits.withDefaults()
	b := &Batches{Files: newFiles(o.Store, o.Dir, lim), opt: o, lim: lim, log: o.Log,
		limiter: NewLimiter(o.InFlight), jobs: map[string]*job{}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// sweepEvery is how often contents of files that have expired are removed.
const sweepEvery = time.Hour

// Start goes on with batches that are not over. While another process has the store, which is about
// to end, it tries again; everything is answered 503 until it succeeds. Close ends it.
func (b *Batches) Start() {
	b.running.Go(func() {
		for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			err := b.begin()
			if err == nil {
				break
			}
			b.log.Warn("batches are not gone on with", "error", err)
			if !b.sleep(wait) {
				return
			}
		}
		for b.sleep(sweepEvery) {
			if err := b.sweep(); err != nil {
				b.log.Warn("files that have expired are not removed", "error", err)
			}
		}
	})
}

// sleep waits, and returns false when all ends.
func (b *Batches) sleep(d time.Duration) bool {
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// begin reads what is kept.
func (b *Batches) begin() error {
	if err := errors.Join(b.Files.open(), os.MkdirAll(b.folder(), 0o700)); err != nil {
		return err
	}
	var open []*record
	var bad error
	err := b.opt.Store.View(func(tx *store.Tx) error {
		tx.Each("batch/", "", false, func(key string, value []byte) bool {
			r := &record{}
			if bad = json.Unmarshal(value, r); bad != nil {
				bad = fmt.Errorf("%s: %w", key, bad)
				return false
			}
			if !r.Status.over() {
				open = append(open, r)
			}
			return true
		})
		return bad
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.started = true
	for _, r := range open {
		b.log.Info("batch goes on", "batch", r.ID, "status", string(r.Status))
		b.launch(r)
	}
	b.mu.Unlock()
	return b.sweep()
}

// sweep removes contents that nothing refers to.
func (b *Batches) sweep() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := map[string]bool{}
	for _, j := range b.jobs {
		j.mu.Lock()
		kept[j.rec.Output], kept[j.rec.Failures] = true, true
		j.mu.Unlock()
	}
	left, err := os.ReadDir(b.folder())
	for _, e := range left {
		id := e.Name()[:len(e.Name())-len(filepath.Ext(e.Name()))]
		if b.jobs[id] == nil {
			err = errors.Join(err, os.Remove(filepath.Join(b.folder(), e.Name())))
		}
	}
	return errors.Join(err, b.Files.sweep(kept))
}

// Close ends the rows that are being asked, and waits for them: they are asked again by the next
// Start. The store is not used any more.
func (b *Batches) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait()
}

// Ready returns an *Error while nothing can be answered.
func (b *Batches) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return told(store.ErrClosed)
	case !b.started:
		return told(store.ErrInUse)
	}
	return nil
}

// folder is where inputs and answers of batches are that are not over.
func (b *Batches) folder() string { return filepath.Join(b.opt.Dir, "batches") }

// path is where the input (".in"), the answers (".out") or the failures (".err") of a batch are.
func (b *Batches) path(id, which string) string { return filepath.Join(b.folder(), id+which) }

// family is the API that a batch is of, as its id begins.
type family string

const (
	// rowsInFile are OpenAI's batches, messagesInRequest Anthropic's.
	rowsInFile        family = "batch_"
	messagesInRequest family = "msgbatch_"
)

func batchKey(owner, id string) string { return "batch/" + owner + "/" + id }

// keptFor is how long a batch is kept after its end.
const keptFor = MostLifetime * time.Second

func putBatch(tx *store.Tx, r *record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var until time.Time
	if r.Status.over() {
		until = time.Now().Add(keptFor)
	}
	return tx.Put(batchKey(r.Owner, r.ID), raw, until)
}

func (b *Batches) put(r *record) error {
	return b.opt.Store.Update(func(tx *store.Tx) error { return putBatch(tx, r) })
}

// Create begins a batch. It takes a picture of its input: that file may be deleted.
func (b *Batches) Create(owner string, q Request) (Batch, error) {
	if err := q.check(b.opt.Answers); err != nil {
		return Batch{}, err
	}
	in, err := b.Files.get(owner, q.InputFileID, "input_file_id")
	if err != nil {
		return Batch{}, err
	}
	if in.Purpose != PurposeBatch {
		return Batch{}, refuse(http.StatusBadRequest, "input_file_id",
			"file %s has the purpose %q, not \"batch\"", in.ID, in.Purpose)
	}
	r := b.newRecord(owner, rowsInFile, q.Endpoint)
	r.InputFileID, r.CompletionWindow = q.InputFileID, q.CompletionWindow
	r.Metadata, r.OutputLifetime = q.Metadata, q.OutputLifetime
	return b.admit(r, func(picture string) error { return os.Link(b.Files.path(in.ID), picture) })
}

// createMessages begins a batch of Anthropic's API, of rows that have been checked.
func (b *Batches) createMessages(owner string, rows int, input *Upload) (Batch, error) {
	r := b.newRecord(owner, messagesInRequest, messagesPath)
	r.Status, r.InProgressAt, r.RequestCounts.Total = InProgress, &r.CreatedAt, rows
	return b.admit(r, input.move)
}

func (b *Batches) newRecord(owner string, of family, endpoint string) *record {
	now := time.Now()
	expires := now.Add(b.opt.CompletionWindow).Unix()
	return &record{Owner: owner, Batch: Batch{ID: string(of) + store.NewID(), Object: "batch",
		Endpoint: endpoint, Status: Validating, CreatedAt: now.Unix(), ExpiresAt: &expires}}
}

// admit begins a batch; place gives it its input.
func (b *Batches) admit(r *record, place func(picture string) error) (Batch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Batch{}, told(store.ErrClosed)
	}
	active := 0
	for _, j := range b.jobs {
		if j.owner == r.Owner {
			active++
		}
	}
	if active >= b.lim.Active {
		return Batch{}, refuse(http.StatusTooManyRequests, "",
			"%d batches are not over: no more are taken until one is", active)
	}
	picture := b.path(r.ID, ".in")
	if err := place(picture); err != nil {
		return Batch{}, told(err)
	}
	if err := b.put(r); err != nil {
		return Batch{}, told(errors.Join(err, os.Remove(picture)))
	}
	b.launch(r)
	return r.Batch, nil
}

// launch runs a batch. The caller holds mu.
func (b *Batches) launch(r *record) {
	j := newJob(b, r)
	b.jobs[r.ID] = j
	b.running.Go(func() {
		defer j.cancel(nil)
		j.run()
		if j.now().Status.over() {
			j.discard()
			b.mu.Lock()
			delete(b.jobs, r.ID)
			b.mu.Unlock()
		}
	})
}

// noBatch is the answer to an id of no batch.
func noBatch(id string) *Error {
	return refuse(http.StatusNotFound, "batch_id", "No such Batch object: %.100s", id)
}

// Get returns the batch of an id.
func (b *Batches) Get(owner, id string) (Batch, error) { return b.get(owner, rowsInFile, id) }

func (b *Batches) get(owner string, of family, id string) (Batch, error) {
	if !validID(id, string(of)) {
		return Batch{}, noBatch(id)
	}
	b.mu.Lock()
	j := b.jobs[id]
	b.mu.Unlock()
	if j != nil && j.owner == owner {
		if o := j.now(); !o.Status.over() {
			return o, nil
		}
	}
	raw, err := b.opt.Store.Get(batchKey(owner, id))
	if errors.Is(err, store.ErrNotFound) {
		return Batch{}, noBatch(id)
	}
	if err != nil {
		return Batch{}, told(err)
	}
	var r record
	err = json.Unmarshal(raw, &r)
	return r.Batch, err
}

// List returns batches of an owner, and whether there are more.
func (b *Batches) List(owner string, p Page) (list []Batch, more bool, err error) {
	return b.list(owner, rowsInFile, p)
}

func (b *Batches) list(owner string, of family, p Page) (list []Batch, more bool, err error) {
	folder, after, ids := batchKey(owner, ""), p.After, []string{}
	if after != "" {
		after = folder + after
	}
	err = b.opt.Store.View(func(tx *store.Tx) error {
		tx.Each(folder+string(of), after, !p.Ascending, func(key string, _ []byte) bool {
			if more = len(ids) == p.Limit; !more {
				ids = append(ids, key[len(folder):])
			}
			return !more
		})
		return nil
	})
	list = []Batch{}
	for _, id := range ids {
		o, err := b.get(owner, of, id)
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusNotFound {
			continue // it expired meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		list = append(list, o)
	}
	return list, more, told(err)
}

// Cancel ends a batch: rows that are being asked are not waited for.
func (b *Batches) Cancel(owner, id string) (Batch, error) {
	return b.cancel(owner, rowsInFile, id)
}

func (b *Batches) cancel(owner string, of family, id string) (Batch, error) {
	o, err := b.get(owner, of, id)
	if err != nil {
		return o, err
	}
	b.mu.Lock()
	j := b.jobs[id]
	b.mu.Unlock()
	if j != nil {
		if o, err = j.cancelNow(); err != nil {
			return o, told(err)
		}
	}
	if o.Status.over() {
		return o, refuse(http.StatusBadRequest, "",
			"Cannot cancel a batch with status '%s'.", o.Status)
	}
	return o, nil
}

// remove forgets a batch that is over, with its answers.
func (b *Batches) remove(owner string, of family, id string) error {
	o, err := b.get(owner, of, id)
	if err != nil {
		return err
	}
	if !o.Status.over() {
		return refuse(http.StatusBadRequest, "",
			"batch %s is %s: only one that has ended can be deleted", id, o.Status)
	}
	for _, file := range []*string{o.OutputFileID, o.ErrorFileID} {
		if file == nil {
			continue
		}
		err := b.Files.Delete(owner, *file)
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusNotFound {
			continue // a client has deleted it
		}
		if err != nil {
			return err
		}
	}
	return told(b.opt.Store.Delete(batchKey(owner, id)))
}
