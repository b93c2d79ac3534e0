package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	parallelFiles = 4
	// spareSpace is left free on the disk besides what is downloaded.
	spareSpace = 64 << 20
	// reportEvery is how often Progress is called for a file at most.
	reportEvery = 100 * time.Millisecond
)

// errChanged means that the Hub now serves another file under the same name.
var errChanged = errors.New("the file has changed on the Hub")

// complete downloads what the commit's snapshot lacks. Weights come last: a snapshot that has them
// has all. Of a model in GGUF it returns the first file, else "".
func (r *resolver) complete(ctx context.Context, info modelInfo) (first string, err error) {
	if err := checkNames(info.Files); err != nil {
		return "", err
	}
	if want := r.opt.Files; want != nil {
		for _, name := range want {
			if !slices.Contains(info.Files, name) {
				return "", fmt.Errorf("%w: the repository %s has no %s", ErrNotFound, r.repo, name)
			}
		}
		return "", r.download(ctx, info.Commit, want)
	}
	if r.tag != "" || onlyGGUF(info.Files) {
		files, err := selectGGUF(info.Files, r.tag)
		if err != nil {
			return "", err
		}
		return files[0], r.download(ctx, info.Commit, files)
	}
	return "", r.completeFolder(ctx, info)
}

// completeFolder is complete for a folder of transformers.
func (r *resolver) completeFolder(ctx context.Context, info modelInfo) error {
	files, err := selectFiles(info.Files)
	if err != nil {
		return err
	}
	weights := []string{singleWeights}
	files = slices.DeleteFunc(files, func(name string) bool { return name == singleWeights })
	if err := r.download(ctx, info.Commit, files); err != nil {
		return err
	}
	if !slices.Contains(info.Files, singleWeights) {
		if weights, err = shardsOf(filepath.Join(r.cache.snapshot(info.Commit),
			weightIndex)); err != nil {
			return err
		}
		for _, shard := range weights {
			if !slices.Contains(info.Files, shard) {
				return fmt.Errorf("%s names %.300q, which the repository lacks", weightIndex, shard)
			}
		}
	}
	return r.download(ctx, info.Commit, weights)
}

// download brings files into the snapshot, several at a time. The first error stops the others.
func (r *resolver) download(ctx context.Context, commit string, files []string) error {
	var wanted []string
	for _, name := range files {
		if !r.cache.has(commit, name) {
			wanted = append(wanted, name)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	infos := make([]fileInfo, len(wanted))
	err := inParallel(ctx, len(wanted), func(ctx context.Context, i int) (err error) {
		infos[i], err = r.from.fileInfo(ctx, r.repo, commit, wanted[i])
		return err
	})
	if err != nil {
		return err
	}
	if err := r.checkSpace(infos); err != nil {
		return err
	}
	t := newTracker(r.opt.Progress, infos)
	return inParallel(ctx, len(wanted), func(ctx context.Context, i int) error {
		if err := r.obtain(ctx, commit, infos[i], t); err != nil {
			return fmt.Errorf("file %s: %w", wanted[i], err)
		}
		return nil
	})
}

// inParallel calls work for 0 to n-1, parallelFiles at a time, and returns the first error, having
// cancelled the rest.
func inParallel(ctx context.Context, n int, work func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	free := make(chan struct{}, parallelFiles)
	for i := range n {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-free }()
			if err := work(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// checkSpace fails before the disk is full rather than after.
func (r *resolver) checkSpace(infos []fileInfo) error {
	var need int64
	for _, f := range infos {
		if f.size <= 0 || isFile(r.cache.blob(f.etag), f.size) {
			continue
		}
		need += f.size
		if info, err := os.Stat(r.cache.blob(f.etag) + ".incomplete"); err == nil {
			need -= min(info.Size(), f.size)
		}
	}
	free, ok := freeSpace(r.cache.dir())
	if ok && need > 0 && need+spareSpace > free {
		return fmt.Errorf("%.1f GB are to be downloaded to %s, where %.1f GB are free",
			float64(need)/1e9, r.cache.root, float64(free)/1e9)
	}
	return nil
}

// isFile reports whether path is a file of that size; a size of -1 is any.
func isFile(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && (size < 0 || info.Size() == size)
}

// obtain brings one file into the snapshot. A file that changes meanwhile is asked for anew.
func (r *resolver) obtain(ctx context.Context, commit string, f fileInfo, t *tracker) error {
	for again := 0; ; again++ {
		err := r.obtainBlob(ctx, commit, f, t)
		if err == nil {
			return r.cache.link(f.etag, commit, f.name)
		}
		if !errors.Is(err, errChanged) || again == 2 {
			return err
		}
		if f, err = r.from.fileInfo(ctx, r.repo, commit, f.name); err != nil {
			return err
		}
		t.resize(f)
	}
}

// obtainBlob makes sure that the cache has the file's content. Content that fails its check is
// fetched once more.
func (r *resolver) obtainBlob(ctx context.Context, commit string, f fileInfo, t *tracker) error {
	blob := r.cache.blob(f.etag)
	if isFile(blob, f.size) {
		t.finish(f)
		return nil
	}
	unlock, err := r.cache.lock(ctx, f.etag)
	if err != nil {
		return err
	}
	defer unlock()
	if isFile(blob, f.size) { // by another process, while this one waited
		t.finish(f)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(blob), 0o755); err != nil {
		return err
	}
	for again := 0; ; again++ {
		err := r.fetchBlob(ctx, commit, f, blob, t)
		if !errors.Is(err, ErrCorrupt) || again == 1 {
			return err
		}
		r.warn("file %s: %v; downloading it again", f.name, err)
	}
}

func (r *resolver) fetchBlob(ctx context.Context, commit string, f fileInfo, blob string,
	t *tracker) error {
	p, err := openPartial(blob+".incomplete", f)
	if err != nil {
		return err
	}
	defer p.close()
	err = r.from.retry(ctx, maxAttempts, func() (bool, error) {
		before := p.size
		if before == f.size {
			return false, nil
		}
		err := r.from.fetch(ctx, r.repo, commit, p, func() { t.report(f, p.size) })
		return p.size > before, err
	})
	if err != nil {
		return err
	}
	if err := p.verify(); err != nil {
		return errors.Join(err, p.discard())
	}
	if f.size < 0 {
		f.size = p.size
	}
	t.finish(f)
	return p.publish(blob)
}

// fetch asks for what the partial file lacks and adds what comes.
func (c *client) fetch(ctx context.Context, repo, commit string, p *partial,
	report func()) error {
	req, err := c.request(ctx, http.MethodGet, c.fileAddress(repo, commit, p.info.name))
	if err != nil {
		return err
	}
	p.ask(req)
	res, err := c.content.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if etag := c.announced(res); res.StatusCode/100 == 2 && etag != "" && etag != p.info.etag {
		return permanent{fmt.Errorf("%w: its ETag is %.100q instead of %q", errChanged, etag,
			p.info.etag)}
	}
	if err := p.check(res, c.statusError); err != nil {
		return err
	}
	return c.fill(p, res.Body, report)
}

// announced is the file's hash in the Hub's own answer or redirect; the ETag of another server
// means something else.
func (c *client) announced(res *http.Response) string {
	for at := res; at != nil; at = at.Request.Response {
		if !c.own(at.Request.URL) {
			continue
		}
		if at.Header.Get(headerETag) != "" || at == res {
			return linkedETag(at.Header)
		}
	}
	return ""
}
