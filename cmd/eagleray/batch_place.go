package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// isAddress says that a place is on the network.
func isAddress(place string) bool {
	return strings.HasPrefix(place, "http://") || strings.HasPrefix(place, "https://")
}

// standard stands for standard input, and for standard output.
const standard = "-"

// openInput opens a file. What can be read only once, and an address, it takes into a temporary
// file without a name: the caller that asks its rows may take hours, which no server waits for.
func openInput(ctx context.Context, place string) (*os.File, error) {
	if isAddress(place) {
		return taken(func(to *os.File) error { return fetch(ctx, place, to) })
	}
	f := os.Stdin
	if place != standard {
		var err error
		if f, err = os.Open(place); err != nil {
			return nil, err
		}
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		return f, nil
	}
	defer f.Close()
	if err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory", place)
	}
	return taken(func(to *os.File) error {
		_, err := io.Copy(to, f)
		return errors.Join(err, rewind(to))
	})
}

// taken is a temporary file without a name, with what fill has written to it.
func taken(fill func(to *os.File) error) (*os.File, error) {
	f, err := os.CreateTemp("", "eagleray-input-*.jsonl")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Remove(f.Name()), fill(f)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// attempts is how often an address is asked before it is given up, as vLLM does.
const attempts = 5

// retry calls f until it succeeds, or fails in a way that another time would not change.
func retry(ctx context.Context, f func() (again bool, err error)) error {
	wait := time.Second
	for n := 1; ; n++ {
		again, err := f()
		if err == nil || !again || n == attempts || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		wait *= 2
	}
}

// fetch writes what is at an address to a file.
func fetch(ctx context.Context, address string, to *os.File) error {
	return retry(ctx, func() (bool, error) {
		if err := errors.Join(to.Truncate(0), rewind(to)); err != nil {
			return false, err
		}
		r, err := exchange(ctx, http.MethodGet, address, nil, 0)
		if err != nil {
			return again(r), err
		}
		defer r.Body.Close()
		if _, err = io.Copy(to, r.Body); err != nil {
			return true, hideQuery(err)
		}
		return false, rewind(to)
	})
}

func rewind(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// again says whether a request may succeed another time: it had no answer, or the server says so.
func again(r *http.Response) bool {
	return r == nil || r.StatusCode >= 500 || r.StatusCode == http.StatusTooManyRequests ||
		r.StatusCode == http.StatusRequestTimeout
}

// exchange sends a request. A response that is no success is an error, and its body is closed; so
// is one that leads from a public address to a private one.
func exchange(ctx context.Context, method, address string, body io.Reader,
	length int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, hideQuery(err)
	}
	if body != nil {
		r.ContentLength = length
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = time.Minute
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: checkRedirect}
	answer, err := client.Do(r)
	if err != nil {
		return nil, hideQuery(err)
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		answer.Body.Close()
		shown, _, _ := strings.Cut(r.URL.Redacted(), "?") // a query may be a signature
		return answer, fmt.Errorf("%s %s: %s", method, shown, answer.Status)
	}
	return answer, nil
}

// hideQuery takes the query of an address out of an error.
func hideQuery(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		u.URL, _, _ = strings.Cut(u.URL, "?")
	}
	return err
}

// errRedirect is a way that is not followed.
var errRedirect = errors.New("redirect to a private address, or from https to http")

// checkRedirect follows nine redirects, none to a place that only this machine or its network can
// reach, unless it was asked for such a one.
func checkRedirect(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= 10:
		return errors.New("ten redirects")
	case r.URL.Scheme != "https" && first.Scheme == "https":
		return errRedirect
	case r.URL.Hostname() != first.Hostname() && private(r.Context(), r.URL.Hostname()):
		return errRedirect
	}
	return nil
}

func private(ctx context.Context, host string) bool {
	list, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false // the request fails for the same reason
	}
	for _, a := range list {
		if a.IP.IsLoopback() || a.IP.IsPrivate() || a.IP.IsLinkLocalUnicast() ||
			a.IP.IsUnspecified() {
			return true
		}
	}
	return false
}

// batchPlace is where the answers of run-batch are written, and where they are sent at the end: to
// an address, or to standard output.
type batchPlace struct {
	path    string
	address string // "" for none
	shown   bool
}

// place makes the place for the output. The file that is kept for an address has a name made of
// both ends: the same command line finds it again.
func (b *batchRun) place() (*batchPlace, error) {
	if b.output == standard {
		f, err := os.CreateTemp("", "eagleray-output-*.jsonl")
		if err != nil {
			return nil, err
		}
		return &batchPlace{path: f.Name(), shown: true}, f.Close()
	}
	if !isAddress(b.output) {
		return &batchPlace{path: b.output}, nil
	}
	dir := b.tmpDir
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("eagleray-batch-%d", os.Getuid()))
	}
	if err := ownFolder(dir, b.tmpDir == ""); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(bare(b.input) + "\n" + bare(b.output)))
	return &batchPlace{address: b.output,
		path: filepath.Join(dir, hex.EncodeToString(sum[:8])+".jsonl")}, nil
}

// ownFolder makes a folder. One of a known name where all users may write must be this user's.
func ownFolder(dir string, known bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil || !known {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder of this user alone: give --output-tmp-dir", dir)
	}
	return nil
}

// bare is an address without its query, which may be a signature of the day.
func bare(address string) string {
	if isAddress(address) {
		address, _, _ = strings.Cut(address, "?")
	}
	return address
}

// show writes the answers to standard output, if that is their place, also those of a run that did
// not come to its end: another run knows nothing of them.
func (p *batchPlace) show() error {
	if !p.shown {
		return nil
	}
	defer os.Remove(p.path)
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(os.Stdout, f)
	return err
}

// send puts the answers to their address.
func (p *batchPlace) send(ctx context.Context) error {
	if p.address == "" {
		return nil
	}
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = retry(ctx, func() (bool, error) {
		if err := rewind(f); err != nil {
			return false, err
		}
		r, err := exchange(ctx, http.MethodPut, p.address, io.NopCloser(f), info.Size())
		if err != nil {
			return again(r), err
		}
		return false, r.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("%w (the answers are in %s)", err, p.path)
	}
	return os.Remove(p.path)
}
