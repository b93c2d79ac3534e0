package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// job is a batch that is not over.
type job struct {
	b                   *Batches
	id, owner, endpoint string
	expires             time.Time
	// rows is the context of its rows; cancel ends them.
	rows   context.Context
	cancel context.CancelCauseFunc

	mu  sync.Mutex
	rec record

	// disk is held by who writes an answer.
	disk sync.Mutex
}

// Causes for which a batch ends before its rows are answered.
var (
	errCancelled = errors.New("the batch is cancelled")
	errExpired   = errors.New("the completion window is over")
)

func newJob(b *Batches, r *record) *job {
	j := &job{b: b, rec: *r, id: r.ID, owner: r.Owner, endpoint: r.Endpoint,
		expires: time.Unix(*r.ExpiresAt, 0)}
	j.rows, j.cancel = context.WithCancelCause(b.ctx)
	if r.Status == Cancelling {
		j.cancel(errCancelled)
	}
	return j
}

// now is the batch as it is.
func (j *job) now() Batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	o := j.rec.Batch
	if o.Usage != nil {
		u := *o.Usage
		o.Usage = &u
	}
	return o
}

// change alters the record, and keeps it. Where that fails nothing is altered.
func (j *job) change(f func(r *record, now *int64)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	next, now := j.rec, time.Now().Unix()
	f(&next, &now)
	if err := j.b.put(&next); err != nil {
		return err
	}
	j.rec = next
	return nil
}

// cancelNow asks for the end of the batch, once that is kept. It is too late for one whose rows are
// all answered.
func (j *job) cancelNow() (Batch, error) {
	err := j.change(func(r *record, now *int64) {
		if r.End == "" && (r.Status == Validating || r.Status == InProgress) {
			r.Status, r.CancellingAt = Cancelling, now
		}
	})
	o := j.now()
	if o.Status == Cancelling {
		j.cancel(errCancelled)
	}
	return o, err
}

// Faults of the disk are waited for to pass.
const firstRetry, longestRetry = 100 * time.Millisecond, 30 * time.Second

// run ends when the batch is over, or all batches end.
func (j *job) run() {
	wait := firstRetry
	for !j.now().Status.over() && j.b.ctx.Err() == nil {
		err := j.step()
		if err == nil {
			wait = firstRetry
			continue
		}
		if j.b.ctx.Err() != nil {
			return
		}
		j.b.log.Error("batch does not go on", "batch", j.id, "error", err, "again_in", wait)
		if !j.b.sleep(wait) {
			return
		}
		wait = min(2*wait, longestRetry)
	}
}

// step takes the batch from one state to the next.
func (j *job) step() error {
	o := j.now()
	switch {
	case j.ending() != "":
		return j.finish()
	case o.Status == Validating:
		return j.validate()
	}
	return j.ask()
}

func (j *job) ending() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rec.End
}

// maxProblems bounds those that are told.
const maxProblems = 100

// validate reads the input: what is wrong with any row fails the batch before one is asked.
func (j *job) validate() error {
	in, err := os.Open(j.b.path(j.id, ".in"))
	if err != nil {
		return err
	}
	defer in.Close()
	v := validator{lim: &j.b.lim, endpoint: j.endpoint, ids: map[string]int{}}
	if err := v.read(j.rows, in); err != nil {
		return err
	}
	if serves := j.b.opt.Serves; serves != nil && v.model != "" && !serves(v.model) &&
		len(v.problems) == 0 {
		v.add(&Problem{Code: "model_not_found",
			Message: fmt.Sprintf("The model %.100q is not served here.", v.model)})
	}
	if j.rows.Err() != nil {
		return nil // cancelled: the next step sees to it
	}
	return j.change(func(r *record, now *int64) {
		if r.Status != Validating {
			return
		}
		if r.RequestCounts.Total = v.rows; len(v.problems) > 0 {
			r.Status, r.FailedAt = Failed, now
			r.Errors = &Problems{"list", v.problems}
			return
		}
		if v.model != "" {
			r.Model = &v.model
		}
		r.Status, r.InProgressAt = InProgress, now
	})
}

// validator reads the rows of a batch.
type validator struct {
	lim      *Limits
	endpoint string
	ids      map[string]int
	rows     int
	model    string
	problems []*Problem
}

func (v *validator) add(p *Problem) {
	if len(v.problems) < maxProblems {
		v.problems = append(v.problems, p)
	}
}

func (v *validator) read(ctx context.Context, r io.Reader) error {
	in := newLines(r, v.lim.LineBytes)
	for ctx.Err() == nil {
		line, err := in.next()
		switch {
		case err == io.EOF:
			if v.rows == 0 {
				v.add(&Problem{Code: CodeEmpty, Message: "The input file is empty."})
			}
			return nil
		case err == errTooLong:
			v.add(longRow(in.number, v.lim.LineBytes).Problem)
		case err != nil:
			return err
		case len(bytes.TrimSpace(line)) == 0:
			continue
		default:
			v.row(parseRow(line, in.number))
		}
		if v.rows++; v.rows > v.lim.Rows {
			v.add(&Problem{Code: CodeTooMany,
				Message: fmt.Sprintf("The input file has more than %d requests.", v.lim.Rows)})
			return nil
		}
	}
	return nil
}

func (v *validator) row(r *Row) {
	if r.Problem != nil {
		v.add(r.Problem)
		return
	}
	if first, twice := v.ids[*r.CustomID]; twice {
		v.add(problem(r.Line, CodeDuplicate, "custom_id",
			"The custom_id %q is also in line %d; custom_ids must be unique.", *r.CustomID, first))
	}
	v.ids[*r.CustomID] = r.Line
	if r.URL != v.endpoint {
		v.add(problem(r.Line, CodeURL, "url",
			"The url %.100q is not the endpoint of the batch, %s.", r.URL, v.endpoint))
	}
	switch {
	case r.Model == "" || r.Model == v.model:
	case v.model == "":
		v.model = r.Model
	default:
		v.add(problem(r.Line, CodeModel, "body.model",
			"The model %.100q is another one than %.100q; a batch has one model.", r.Model,
			v.model))
	}
}

// ask asks the rows that have no answer. Afterwards every row has a line.
func (j *job) ask() error {
	if o := j.now(); o.InProgressAt == nil { // cancelled before its rows were known
		return j.change(func(r *record, _ *int64) { r.End = Cancelled })
	}
	in, err := os.Open(j.b.path(j.id, ".in"))
	if err != nil {
		return err
	}
	defer in.Close()
	o, err := j.outputs()
	if err != nil {
		return err
	}
	end, err := j.pump(in, o)
	closing := errors.Join(o.ok.close(), o.failed.close())
	if err != nil || closing != nil {
		return errors.Join(err, closing)
	}
	return j.change(func(r *record, now *int64) {
		if r.End = end; end == Completed {
			r.Status, r.FinalizingAt = Finalizing, now
		}
		if o.ok.size > 0 {
			r.Output = "file-" + store.NewID()
		}
		if o.failed.size > 0 {
			r.Failures = "file-" + store.NewID()
		}
	})
}

// outputs are the answers of a batch so far.
type outputs struct {
	ok, failed *spool
	done       done
}

// outputs reads the answers that are there, and counts them.
func (j *job) outputs() (*outputs, error) {
	o := &outputs{}
	j.mu.Lock()
	j.rec.RequestCounts.Completed, j.rec.RequestCounts.Failed, j.rec.Usage = 0, 0, nil
	j.mu.Unlock()
	each := func(_ int, line *outcome) error {
		j.count(line)
		return o.done.add(line)
	}
	var err error
	if o.ok, err = openSpool(j.b.path(j.id, ".out"), each); err != nil {
		return nil, err
	}
	if o.failed, err = openSpool(j.b.path(j.id, ".err"), each); err != nil {
		return nil, errors.Join(err, o.ok.close())
	}
	return o, nil
}

// count counts a row that is over.
func (j *job) count(o *outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch r := &j.rec; {
	case succeeded(o):
		r.RequestCounts.Completed++
		if r.Usage == nil {
			r.Usage = &Usage{}
		}
		r.Usage.add(o.Response.Body)
	case o.Error == nil || o.Error.Code != CodeExpired && o.Error.Code != CodeCancelled:
		r.RequestCounts.Failed++
	}
}

func succeeded(o *outcome) bool {
	return o.Response != nil && (&Answer{Status: o.Response.Status}).ok()
}

// pump asks the rows of an input until all have a line, and says how the batch ends.
func (j *job) pump(in io.ReadSeeker, o *outputs) (Status, error) {
	rows, stop := context.WithDeadlineCause(j.rows, j.expires, errExpired)
	defer stop()
	p := &pump{input: in, most: j.b.lim.LineBytes, done: o.done, limiter: j.b.limiter,
		do: func(ctx context.Context, r *Row) (Answer, error) {
			return j.b.opt.Do(ctx, j.owner, r)
		}}
	var mu sync.Mutex
	until := rows                 // there is room
	after := slices.Clone(o.done) // p reads its own
	p.emit = func(r *Row, line *outcome) error {
		to := o.failed
		if succeeded(line) {
			to = o.ok
		}
		text, err := line.line()
		if err != nil {
			return err
		}
		if err := j.write(until, to, text); err != nil {
			return err
		}
		j.count(line)
		mu.Lock()
		defer mu.Unlock()
		return after.add(line)
	}
	end := Completed
	err := p.run(rows)
	switch {
	case err == nil:
		return end, nil
	case errors.Is(err, errCancelled):
		end = Cancelled
		p.refusal = &fault{CodeCancelled,
			"This request could not be executed before the batch was cancelled."}
	case errors.Is(err, errExpired):
		end = Expired
		p.refusal = &fault{CodeExpired,
			"This request could not be executed before the completion window expired."}
	default:
		return "", err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	p.done = slices.Clone(after)
	until = j.b.ctx
	return end, p.run(j.b.ctx)
}

// write appends a line. On a full disk it waits until there is room, or ctx ends: a row is not
// asked again because its answer could not be kept, and rows that come meanwhile wait as well.
func (j *job) write(ctx context.Context, to *spool, line []byte) error {
	j.disk.Lock()
	defer j.disk.Unlock()
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		err := to.append(line)
		if err == nil || !noRoom(err) {
			return err
		}
		j.b.log.Error("batch waits for room on the disk",
			"batch", j.id, "error", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// finish gives the answers their places among the files, and ends the batch.
func (j *job) finish() error {
	b := j.b
	b.Files.place.Lock()
	defer b.Files.place.Unlock()
	r := j.record()
	var files []File
	for _, f := range []struct{ id, which, name string }{
		{r.Output, ".out", r.ID + "_output.jsonl"}, {r.Failures, ".err", r.ID + "_error.jsonl"},
	} {
		if f.id == "" {
			continue
		}
		// It may have been moved before a crash.
		err := os.Rename(b.path(r.ID, f.which), b.Files.path(f.id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		info, err := os.Stat(b.Files.path(f.id))
		if err != nil {
			return err
		}
		files = append(files, newFile(f.id, f.name, PurposeOutput, info.Size(),
			time.Duration(r.OutputLifetime)*time.Second))
	}
	now := time.Now().Unix()
	r.Status = r.End
	switch r.End {
	case Completed:
		r.CompletedAt = &now
	case Cancelled:
		r.CancelledAt = &now
	case Expired:
		r.ExpiredAt = &now
	}
	if r.Output != "" {
		r.OutputFileID = &r.Output
	}
	if r.Failures != "" {
		r.ErrorFileID = &r.Failures
	}
	err := b.opt.Store.Update(func(tx *store.Tx) error {
		for i := range files {
			if err := putFile(tx, r.Owner, &files[i]); err != nil {
				return err
			}
		}
		return putBatch(tx, &r)
	})
	if err != nil {
		return err
	}
	j.mu.Lock()
	j.rec = r
	j.mu.Unlock()
	b.log.Info("batch is over", "batch", r.ID, "status", string(r.Status), "completed",
		r.RequestCounts.Completed, "failed", r.RequestCounts.Failed, "total", r.RequestCounts.Total)
	return nil
}

// discard removes what a batch that is over has left.
func (j *job) discard() {
	for _, which := range []string{".in", ".out", ".err"} {
		if err := os.Remove(j.b.path(j.id, which)); err != nil && !errors.Is(err, os.ErrNotExist) {
			j.b.log.Warn("a file of a batch is not removed", "error", err) // the next sweep does it
		}
	}
}

func (j *job) record() record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rec
}
