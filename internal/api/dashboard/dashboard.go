// Package dashboard shows a running engine in a browser: one page with a chat, a live view of the
// engine, and benchmarks: it starts them and compares their results. It needs no files and no
// network beside the server's own, samples the ranks only while a page is open, and keeps a few
// figures of the last minutes.
package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/web"
)

// Source is what the page shows: an engine, or several as one.
type Source interface {
	Info() *open.Info
	Totals() engine.Totals
	Report() []executor.RankStatus
	Links() []metrics.Link
	// ExpertLoad waits until the ranks have answered.
	ExpertLoad(context.Context) ([]engine.ExpertLoad, error)
	// Healthy tells whether a request would be served now; the error says why not. Health says so
	// of each of several engines.
	Healthy(context.Context) error
	Health(context.Context) []error
}

// Options configure a Page.
type Options struct {
	Engine Source
	// Metrics has the latencies; nil shows none.
	Metrics *metrics.Metrics
	// Events has been notified since before the engine was opened.
	Events *Events
	// Version is the program's.
	Version string
	// MaxLogprobs is how many alternatives per token a request may ask for.
	MaxLogprobs int
	// Measure measures the server; nil offers no measurements.
	Measure Measure
}

// Page serves the page and its feed. It is safe for concurrent use.
type Page struct {
	opt     Options
	files   map[string]*file
	past    *past
	viewers atomic.Int64
	// measuring says that a measurement is under way.
	measuring atomic.Bool
	close     sync.Once
	closed    chan struct{}
}

// Prefix is what the paths of the page's files begin with, beside the page itself at "/": FilesPath
// is their route. AboutPath answers with About as JSON, LivePath is the feed.
const (
	Prefix    = "/window/"
	FilesPath = Prefix + "{file...}"
	AboutPath = Prefix + "about"
	LivePath  = Prefix + "live"
)

// New makes a Page.
func New(o Options) (*Page, error) {
	files, err := load()
	if err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	return &Page{opt: o, files: files, past: &past{engine: o.Engine, metrics: o.Metrics},
		closed: make(chan struct{})}, nil
}

// Record keeps what a page that opens shows of the time before, until the page is closed.
func (p *Page) Record() { p.past.record(p.closed) }

// Close ends the open feeds and Record. Closing twice is harmless.
func (p *Page) Close() { p.close.Do(func() { close(p.closed) }) }

// Viewers is how many feeds are open.
func (p *Page) Viewers() int { return int(p.viewers.Load()) }

// policy is the page's: its own files and its own server, no inline script or style, no HTML made
// from strings, no frames.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// File answers with a file of the page, and with the page itself for "". It reports false for one
// that the page does not have.
func (p *Page) File(w http.ResponseWriter, r *http.Request, name string) bool {
	f := p.files[name]
	if f == nil {
		return false
	}
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// Asked for again each time, so that a page never runs with another version's scripts.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	h.Set("Content-Type", f.kind)
	h.Set("Content-Length", strconv.Itoa(len(f.body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(f.body) // a viewer that has gone needs no answer
	}
	return true
}

type file struct {
	body      []byte
	kind, tag string
}

// kinds are the content types of the files that are served.
var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// load reads the embedded files by their names below Prefix, and the page by "". Those that only
// reports and readers need are left out.
func load() (map[string]*file, error) {
	files := map[string]*file{}
	err := fs.WalkDir(web.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == reportPage {
			return err
		}
		kind := kinds[path.Ext(name)]
		if kind == "" {
			return nil
		}
		body, err := web.Files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		below := strings.TrimPrefix(name, "vendor/")
		if name == "index.html" {
			below = ""
		}
		files[below] = &file{body: body, kind: kind, tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
		return nil
	})
	return files, err
}

const reportPage = "report.html"
