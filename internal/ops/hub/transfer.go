package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

// origin is where a model's files are: a Hub, or a bucket.
type origin interface {
	// name says in messages who is asked.
	name() string
	// modelInfo asks which files there are, and which commit they are.
	modelInfo(ctx context.Context, repo, revision string, attempts int) (modelInfo, error)
	// fileInfo asks for a file's size and hash.
	fileInfo(ctx context.Context, repo, commit, name string) (fileInfo, error)
	// fetch asks for what the partial file lacks and adds what comes.
	fetch(ctx context.Context, repo, commit string, p *partial, report func()) error
	// hint says of an error that no network explains what can be done without one.
	hint(ctx context.Context, err error) error
	retry(ctx context.Context, attempts int, try func() (progress bool, err error)) error
	close()
}

// transfer is what all origins have in common: connections, patience, and the bodies of files.
type transfer struct {
	content   *http.Client
	firstWait time.Duration // before the first retry
	idle      time.Duration // a body that brings nothing for so long is given up
}

// newTransfer has no client yet.
func newTransfer(opt Options) transfer {
	return transfer{firstWait: cmp.Or(opt.firstWait, time.Second),
		idle: cmp.Or(opt.idle, time.Minute)}
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second,
			KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   parallelFiles,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		DisableCompression:    true, // sizes and offsets are those of the file itself
	}
}

// close ends the connections that are kept for more requests.
func (t *transfer) close() { t.content.CloseIdleConnections() }

// fill adds a body to what there is of a file.
func (t *transfer) fill(p *partial, content io.ReadCloser, report func()) error {
	body := newIdleReader(content, t.idle)
	defer body.stop()
	buf := make([]byte, 256<<10)
	for {
		n, err := body.Read(buf)
		if err := p.add(buf[:n]); err != nil {
			return err
		}
		report()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if p.info.size >= 0 && p.size < p.info.size {
		return fmt.Errorf("the connection ended after %d of %d bytes: %w", p.size, p.info.size,
			io.ErrUnexpectedEOF)
	}
	return nil
}

// statusError is an answer other than the one hoped for.
type statusError struct {
	status int
	wait   time.Duration // from Retry-After
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// temporary reports whether the same request may succeed later.
func (e *statusError) temporary() bool {
	return e.status == http.StatusRequestTimeout || e.status == http.StatusTooManyRequests ||
		e.status >= 500 && e.status != http.StatusNotImplemented
}

// retryAfter is how long an answer asks to wait, within what is waited at most.
func retryAfter(res *http.Response) time.Duration {
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxWait)
}

// permanent marks an error that trying again does not mend.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// retry calls try until it succeeds, fails for good, or has failed the given number of times in a
// row; try says whether it has got any further, which starts the count again. Waiting doubles from
// one failure to the next.
func (t *transfer) retry(ctx context.Context, attempts int,
	try func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if progress {
			failed = 0
		}
		failed++
		var status *statusError
		isStatus := errors.As(err, &status)
		if failed >= attempts || errors.As(err, &permanent{}) || isStatus && !status.temporary() {
			return err
		}
		wait := min(t.firstWait<<(failed-1), maxWait)
		wait = wait/2 + rand.N(wait/2+1)
		if isStatus {
			wait = max(wait, status.wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// unreachable reports whether there was no answer that settles the matter.
func unreachable(ctx context.Context, err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.temporary()
	}
	return ctx.Err() == nil && !errors.As(err, &permanent{})
}

// idleReader gives up on a body that brings nothing for a while, by closing it.
type idleReader struct {
	body  io.ReadCloser
	idle  time.Duration
	timer *time.Timer
}

func newIdleReader(body io.ReadCloser, idle time.Duration) *idleReader {
	return &idleReader{body, idle, time.AfterFunc(idle, func() { body.Close() })}
}

func (r *idleReader) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if !r.timer.Reset(r.idle) && err != nil {
		err = fmt.Errorf("nothing was received for %v: %w", r.idle, err)
	}
	return n, err
}

func (r *idleReader) stop() { r.timer.Stop() }
