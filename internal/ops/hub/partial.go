package hub

import (
	"bufio"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// partial is a file while it is downloaded. Its name comes from its content's hash, and every byte
// is written to its own place: should two processes get past the lock, which not every network file
// system honours, they write the same.
type partial struct {
	info fileInfo
	file *os.File
	size int64     // bytes known to be good so far
	sum  hash.Hash // of those, for files whose hash is known; else nil
}

// openPartial opens what an earlier download left, or starts one.
func openPartial(path string, info fileInfo) (*partial, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	p := &partial{info: info, file: file}
	if info.sum != nil {
		p.sum = info.sum()
	}
	if err := p.resume(); err != nil {
		file.Close()
		return nil, fmt.Errorf("resume %s: %w", path, err)
	}
	return p, nil
}

// resume takes over the bytes that are there, unless there are more than the file may have.
func (p *partial) resume() error {
	stat, err := p.file.Stat()
	if err != nil {
		return err
	}
	if p.info.size < 0 || stat.Size() > p.info.size {
		p.restart()
		return nil
	}
	p.size = stat.Size()
	if p.sum == nil || p.size == 0 {
		return nil
	}
	_, err = io.Copy(p.sum, io.NewSectionReader(p.file, 0, p.size))
	return err
}

// restart begins anew. The file is not cut: what is in it is overwritten, and cut to length at the
// end.
func (p *partial) restart() {
	p.size = 0
	if p.sum != nil {
		p.sum.Reset()
	}
}

// ask makes a request one for what the file lacks.
func (p *partial) ask(req *http.Request) {
	if p.size > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(p.size, 10)+"-")
	}
}

// check makes sure that what the answer carries continues the file, which it empties if it has to
// begin anew. refused explains an answer that carries none of it.
func (p *partial) check(res *http.Response, refused func(*http.Response) error) error {
	switch res.StatusCode {
	case http.StatusOK:
		p.restart()
	case http.StatusPartialContent:
		if err := checkRange(res.Header.Get("Content-Range"), p); err != nil {
			p.restart()
			return err
		}
	case http.StatusRequestedRangeNotSatisfiable:
		err := fmt.Errorf("the server has nothing from byte %d on", p.size)
		p.restart()
		return err
	default:
		return refused(res)
	}
	return nil
}

// checkRange holds "bytes first-last/total" against what was asked for.
func checkRange(header string, p *partial) error {
	span, total, ok := strings.Cut(strings.TrimPrefix(header, "bytes "), "/")
	first, _, ok2 := strings.Cut(span, "-")
	at, err := strconv.ParseInt(first, 10, 64)
	if !ok || !ok2 || err != nil || at != p.size {
		return fmt.Errorf("the server answers with range %.100q where byte %d is expected", header,
			p.size)
	}
	if n, err := strconv.ParseInt(total, 10, 64); err == nil && p.info.size >= 0 &&
		n != p.info.size {
		return fmt.Errorf("the server answers for a file of %d bytes instead of %d", n, p.info.size)
	}
	return nil
}

// add appends bytes.
func (p *partial) add(b []byte) error {
	if p.info.size >= 0 && int64(len(b)) > p.info.size-p.size {
		return permanent{fmt.Errorf("%w: more than the announced %d bytes were sent", ErrCorrupt,
			p.info.size)}
	}
	if _, err := p.file.WriteAt(b, p.size); err != nil {
		return permanent{err}
	}
	p.size += int64(len(b))
	if p.sum != nil {
		p.sum.Write(b)
	}
	return nil
}

// verify holds the content to its hash. An ETag of another form, which only mirrors have, says
// nothing about it.
func (p *partial) verify() error {
	if err := p.file.Truncate(p.size); err != nil {
		return err
	}
	got, want := p.info.etag, p.info.etag
	switch {
	case p.sum != nil:
		got, want = hex.EncodeToString(p.sum.Sum(nil)), p.info.want
	case isHex(p.info.etag, sha1.Size):
		sum, err := gitBlobHash(io.NewSectionReader(p.file, 0, p.size), p.size)
		if err != nil {
			return err
		}
		got = sum
	}
	if got != want {
		return fmt.Errorf("%w: its hash is %s instead of %s", ErrCorrupt, got, want)
	}
	return nil
}

// gitBlobHash is the name that git gives to content
// (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects). Files named so are small, because git
// itself holds them.
func gitBlobHash(r io.Reader, size int64) (string, error) {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	if _, err := io.Copy(h, bufio.NewReader(r)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// publish moves the whole file to its place in the cache, on the disk before its name is.
func (p *partial) publish(blob string) error {
	if err := p.file.Sync(); err != nil {
		return err
	}
	err := os.Rename(p.file.Name(), blob)
	if errors.Is(err, fs.ErrNotExist) && sameFile(p.file, blob) {
		return nil // by another process that got past the lock
	}
	return err
}

// discard removes the file.
func (p *partial) discard() error { return os.Remove(p.file.Name()) }

func (p *partial) close() { p.file.Close() }

// isHex reports whether s is the hexadecimal form of n bytes.
func isHex(s string, n int) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == n
}
