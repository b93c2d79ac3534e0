// Package conform holds, in tests, what servers read and answer against the document of their
// routes.
package conform

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/eagleray/eagleray/internal/api/openapi"
)

// Handler serves as h does, and has a test fail where a request that is answered, or an answer to
// one, is not as the server's document has it. With -short nothing is checked: a document takes
// half a second of a processor.
func Handler(t testing.TB, h http.Handler) http.Handler {
	if testing.Short() {
		return h
	}
	document := sync.OnceValue(func() *document { return documentOf(t, h) })
	var checks sync.WaitGroup // beside the answers: none is held up
	t.Cleanup(checks.Wait)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header.Get("Content-Encoding") != "" ||
			r.Header.Get("X-Eagleray-Resume") != "" { // the rest of an answer has no whole events
			h.ServeHTTP(w, r)
			return
		}
		var body bytes.Buffer
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &body), r.Body}
		kept := &keptAnswer{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(kept, r)
		if kept.status != http.StatusOK {
			return
		}
		kept.media, _, _ = strings.Cut(w.Header().Get("Content-Type"), ";")
		checks.Go(func() {
			if d := document(); d != nil {
				d.check(t, r.URL.Path, body.Bytes(), kept)
			}
		})
	})
}

// keptAnswer keeps what is written of an answer.
type keptAnswer struct {
	http.ResponseWriter
	status int
	media  string
	body   bytes.Buffer
}

func (k *keptAnswer) WriteHeader(status int) {
	k.status = status
	k.ResponseWriter.WriteHeader(status)
}

func (k *keptAnswer) Write(b []byte) (int, error) {
	k.body.Write(b)
	return k.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (k *keptAnswer) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// document has the schemas of a server's document.
type document struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	known    map[string]*jsonschema.Schema
}

// documentOf is a server's, nil where it shows none.
func documentOf(t testing.TB, h http.Handler) *document {
	rec := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, openapi.DocumentPath, nil)
	r.Host = "localhost"
	if h.ServeHTTP(rec, r); rec.Code != http.StatusOK {
		return nil
	}
	d := &document{compiler: jsonschema.NewCompiler(), known: map[string]*jsonschema.Schema{}}
	v, err := jsonschema.UnmarshalJSON(rec.Body)
	if err == nil {
		err = d.compiler.AddResource("openapi.json", v)
	}
	if err != nil {
		t.Errorf("%s: %v", openapi.DocumentPath, err)
		return nil
	}
	return d
}

// schema is one of an operation of a path, nil where there is none.
func (d *document) schema(path, place string) *jsonschema.Schema {
	d.mu.Lock()
	defer d.mu.Unlock()
	path = strings.ReplaceAll(path, "/", "~1")
	at := "openapi.json#/paths/" + path + "/post/" + place + "/schema"
	s, known := d.known[at]
	if !known {
		s, _ = d.compiler.Compile(at) // an error is that there is none, or one that answers find
		d.known[at] = s
	}
	return s
}

// check wants an exchange to be as it is described.
func (d *document) check(t testing.TB, path string, body []byte, answer *keptAnswer) {
	const media = "application~1json"
	wants := func(what string, s *jsonschema.Schema, text []byte) {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = s.Validate(v)
		}
		if err != nil {
			t.Errorf("%s of %s is not as described: %v\n%.2000s", what, path, err, text)
		}
	}
	if s := d.schema(path, "requestBody/content/"+media); s != nil {
		wants("a request", s, body)
	}
	switch answer.media {
	case "application/json":
		if s := d.schema(path, "responses/200/content/"+media); s != nil {
			wants("an answer", s, answer.body.Bytes())
		}
	case "text/event-stream":
		s := d.schema(path, "responses/200/content/text~1event-stream")
		if s == nil {
			t.Errorf("events of %s are not described", path)
			return
		}
		events := bytes.Split(answer.body.Bytes(), []byte("\n\n"))
		for _, e := range events[:len(events)-1] { // the last is empty, or was cut
			_, data, _ := bytes.Cut(e, []byte("data: "))
			if string(data) != "[DONE]" {
				wants("an event", s, data)
			}
		}
	}
}
