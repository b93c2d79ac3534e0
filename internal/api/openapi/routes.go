package openapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"

	"github.com/eagleray/eagleray/internal/api/server"
)

// DocumentPath has the document, PagePath the page that shows it.
const (
	DocumentPath = "/openapi.json"
	PagePath     = "/docs"
)

// Routes are those that describe a server's others. They are made when they are first asked for:
// all routes are known by then.
func Routes(s *server.Server, o Options) []server.Route {
	described := sync.OnceValues(func() (*files, error) { return newFiles(s.Routes(), o) })
	answer := func(kind string, text func(*files) []byte) server.Handler {
		return func(w http.ResponseWriter, r *server.Request) error {
			f, err := described()
			if err != nil {
				return err
			}
			h, body := w.Header(), text(f)
			h.Set("Content-Type", kind)
			h.Set("Content-Length", strconv.Itoa(len(body)))
			h.Set("Content-Security-Policy", policy)
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("X-Frame-Options", "DENY")
			h.Set("Cache-Control", "no-cache")
			w.WriteHeader(http.StatusOK)
			if r.Method == http.MethodHead {
				return nil
			}
			_, _ = w.Write(body) // a reader that has gone needs no answer
			return nil
		}
	}
	return []server.Route{
		{Method: "GET", Path: DocumentPath, Public: true,
			Handler: answer(media, func(f *files) []byte { return f.document }),
			Doc: server.Doc{Summary: "Describe the routes of this server as OpenAPI 3.1",
				Answer: map[string]any{}}},
		{Method: "GET", Path: PagePath, Public: true,
			Handler: answer("text/html; charset=utf-8", func(f *files) []byte { return f.page }),
			Doc: server.Doc{Summary: "Show the routes of this server to a browser",
				Media: "text/html"}},
	}
}

// files are what the routes answer with.
type files struct{ document, page []byte }

func newFiles(routes []server.Route, o Options) (*files, error) {
	d := New(routes, o)
	document, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	page, err := d.page()
	return &files{document, page}, err
}

// policy lets the page have its one style, and nothing else: no script, no picture, no request.
var policy = "default-src 'none'; style-src 'sha256-" + digest(style) + "'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}
