package batch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// APIOptions configure the Files and Batch API.
type APIOptions struct {
	// Store and Dir keep files and batches; without either the server has none.
	Store *store.Store
	Dir   string
	Log   *slog.Logger
	// Metrics counts rows; nil for none.
	Metrics *metrics.Metrics
	Limits  wire.Limits
	// Serves says that a model has this name.
	Serves func(model string) bool
	// InFlight is how many rows are asked at once.
	InFlight int
}

// API answers requests for files and batches, and the rows of these.
type API struct {
	*server.Server
	opt     APIOptions
	lim     Limits
	batches *Batches // nil for none
}

// NewAPI makes the Files and Batch API.
func NewAPI(srv *server.Server, o APIOptions) *API {
	s := &API{Server: srv, opt: o, lim: Limits{}.withDefaults()}
	if o.Store != nil && o.Dir != "" {
		s.batches = New(Options{Store: o.Store, Dir: o.Dir, Limits: s.lim, Do: s.countedRow,
			Log: o.Log, Answers: s.answersRows, Serves: o.Serves, InFlight: o.InFlight})
	}
	return s
}

// countedRow is Row, for the metrics too.
func (s *API) countedRow(ctx context.Context, client string, row *Row) (Answer, error) {
	if s.opt.Metrics == nil {
		return s.Row(ctx, client, row)
	}
	done := s.opt.Metrics.BatchRow()
	a, err := s.Row(ctx, client, row)
	if err != nil {
		done(0) // it is asked again, or never
		return a, err
	}
	done(a.Status)
	return a, nil
}

// Start goes on with the batches of an earlier server.
func (s *API) Start() {
	if s.batches != nil {
		s.batches.Start()
	}
}

// Stop ends the rows of batches that are being answered: the next server answers them.
func (s *API) Stop() {
	if s.batches != nil {
		s.batches.Close()
	}
}

// Ready is nil once files and batches of an earlier server are known.
func (s *API) Ready() error { return s.batches.Ready() }

// fileFields are the fields of a form with a file, for the description of its route.
type fileFields struct {
	File    string `json:"file"`
	Purpose string `json:"purpose"`
	Anchor  string `json:"expires_after[anchor],omitempty"`
	Seconds int    `json:"expires_after[seconds],omitempty"`
}

// deleted says that a file is gone.
type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// Routes are those for files and batches.
func (s *API) Routes() []server.Route {
	purpose := server.Param{Name: "purpose", Type: "string"}
	routes := []server.Route{
		{Method: "POST", Path: "/v1/files", Handler: s.createFile,
			Doc: server.Doc{Summary: "Upload a file", Answer: File{},
				Body: &server.Body{Value: fileFields{}, Media: "multipart/form-data"}}},
		{Method: "GET", Path: "/v1/files", Handler: s.listFiles,
			Doc: server.Doc{Summary: "List files", Answer: list[File]{},
				Query: append([]server.Param{purpose}, server.Paged...)}},
		{Method: "GET", Path: "/v1/files/{id}", Handler: s.getFile,
			Doc: server.Doc{Summary: "Describe a file", Answer: File{}}},
		{Method: "GET", Path: "/v1/files/{id}/content", Handler: s.fileContent,
			Doc: server.Doc{Summary: "Download a file", Media: "application/octet-stream"}},
		{Method: "DELETE", Path: "/v1/files/{id}", Handler: s.deleteFile,
			Doc: server.Doc{Summary: "Delete a file", Answer: deleted{}}},
		server.Posted(s.Server, "/v1/batches", decodeBatch, s.createBatch,
			server.Doc{Summary: "Have the requests of a file answered", Answer: Batch{}},
			`{"input_file_id":"file-1","endpoint":"/v1/chat/completions",`+
				`"completion_window":"24h"}`),
		{Method: "GET", Path: "/v1/batches", Handler: s.listBatches,
			Doc: server.Doc{Summary: "List batches", Answer: list[Batch]{}, Query: server.Paged}},
		{Method: "GET", Path: "/v1/batches/{id}", Handler: s.getBatch,
			Doc: server.Doc{Summary: "Describe a batch", Answer: Batch{}}},
		{Method: "POST", Path: "/v1/batches/{id}/cancel", Handler: s.cancelBatch,
			Doc: server.Doc{Summary: "Cancel a batch", Answer: Batch{}}},
	}
	routes = append(routes, s.messageRoutes()...)
	for i := range routes {
		routes[i].Handler = s.kept(routes[i].Handler)
	}
	return routes
}

// kept wraps handlers of files and batches: the server must keep some, and their errors have a
// status.
func (s *API) kept(h server.Handler) server.Handler {
	return func(w http.ResponseWriter, r *server.Request) error {
		if s.batches == nil {
			return &wire.Error{Status: http.StatusNotFound,
				Message: "this server keeps no files and batches: it needs --store-dir"}
		}
		err := s.batches.Ready()
		if err == nil {
			err = h(w, r)
		}
		var told *Error
		if !errors.As(err, &told) {
			return err
		}
		api := &wire.Error{Status: told.Status, Param: told.Param, Message: told.Message,
			Expected: true}
		if told.Status == http.StatusServiceUnavailable ||
			told.Status == http.StatusTooManyRequests {
			api.RetryAfter = 1
		}
		return api
	}
}

// createFile answers POST /v1/files. The content goes to the disk as it comes.
func (s *API) createFile(w http.ResponseWriter, r *server.Request) error {
	if r.ContentLength > maxUpload {
		return &http.MaxBytesError{Limit: maxUpload}
	}
	in := &uploadReader{timeout: s.opt.Limits.BodyTimeout, rc: http.NewResponseController(w)}
	var err error
	if in.r, err = server.Expand(w, r.Request, maxUpload); err != nil {
		return err
	}
	r.Body = io.NopCloser(in)
	parts, err := r.MultipartReader()
	if err != nil {
		return &wire.Error{Status: http.StatusUnsupportedMediaType,
			Message: "a file is uploaded as multipart/form-data: " + err.Error()}
	}
	u, err := s.batches.Files.Begin(r.Owner)
	if err != nil {
		return err
	}
	defer u.Abort()
	f := fileForm{}
	if err := f.read(parts, u); err != nil {
		return in.failure(err)
	}
	lifetime, bad := f.check()
	if bad != nil {
		return bad
	}
	o, err := u.Commit(f.name, f.fields["purpose"], lifetime)
	if err != nil {
		return err
	}
	return s.WriteJSON(w, o)
}

// maxUpload bounds a body with a file, in bytes.
const maxUpload = 512_000_000 + 1<<20

// uploadReader reads a large body: as long as some of it comes, it has time.
type uploadReader struct {
	timeout time.Duration
	r       io.Reader
	rc      *http.ResponseController
	set     time.Time
	over    bool // the body was there to its end
}

// Read implements io.Reader.
func (u *uploadReader) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(u.set) > u.timeout/8 {
		u.set = now
		_ = u.rc.SetReadDeadline(now.Add(u.timeout)) // not every connection has deadlines
	}
	n, err := u.r.Read(b)
	u.over = u.over || err == io.EOF
	return n, err
}

// failure says whose fault it is that a form did not arrive.
func (u *uploadReader) failure(err error) error {
	var told *Error
	var bad *wire.Error
	switch {
	case errors.As(err, &told), errors.As(err, &bad):
		return err
	case u.over:
		return wire.BadRequest("", "the form is malformed: %v", err)
	}
	return server.BodyFailure(err, time.Time{})
}

// fileForm are the parts of a form with a file.
type fileForm struct {
	fields map[string]string
	name   string
	file   bool
}

// Limits of a form beside its file.
const (
	maxParts     = 16
	maxPartBytes = 1024
)

// read takes the parts in any order, and writes that of the file to u.
func (f *fileForm) read(parts *multipart.Reader, u io.Writer) error {
	f.fields = map[string]string{}
	for n := 0; ; n++ {
		part, err := parts.NextPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := part.FormName()
		switch {
		case n == maxParts:
			return wire.BadRequest("", "the form has more than %d parts", maxParts)
		case name == "file" && f.file:
			return wire.BadRequest("file", "the form has `file` twice")
		case name == "file":
			f.file, f.name = true, wire.Clip(strings.ToValidUTF8(part.FileName(), "\uFFFD"))
			_, err = io.Copy(u, part)
		default:
			var text []byte
			text, err = io.ReadAll(io.LimitReader(part, maxPartBytes+1))
			if len(text) > maxPartBytes {
				return wire.BadRequest(wire.Clip(name), "`%s` is longer than %d bytes",
					wire.Clip(name), maxPartBytes)
			}
			f.fields[name] = string(text)
		}
		if err != nil {
			return err
		}
	}
}

func (f *fileForm) check() (lifetime time.Duration, bad *wire.Error) {
	switch purpose := f.fields["purpose"]; {
	case !f.file:
		return 0, wire.BadRequest("file", "`file` is required")
	case purpose == "":
		return 0, wire.BadRequest("purpose", "`purpose` is required")
	case purpose != PurposeBatch && purpose != PurposeUser:
		return 0, wire.BadRequest("purpose", "`purpose` must be \"batch\" or \"user_data\", got %q",
			wire.Clip(purpose))
	}
	anchor, anchored := f.fields["expires_after[anchor]"]
	seconds, given := f.fields["expires_after[seconds]"]
	if !anchored && !given {
		return 0, nil
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return 0, wire.BadRequest("expires_after.seconds",
			"`expires_after[seconds]` must be a number, got %q", wire.Clip(seconds))
	}
	return lifetimeOf("expires_after", anchor, n)
}

// lifetimeOf checks an object that says how long a file is kept.
func lifetimeOf(param, anchor string, seconds int64) (time.Duration, *wire.Error) {
	if anchor != "created_at" {
		return 0, wire.BadRequest(param+".anchor", "`%s.anchor` must be \"created_at\", got %q",
			param, wire.Clip(anchor))
	}
	if seconds < LeastLifetime || seconds > MostLifetime {
		return 0, wire.BadRequest(param+".seconds", "`%s.seconds` must be %d to %d, got %d", param,
			LeastLifetime, MostLifetime, seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

// list is a page of a list.
type list[T any] struct {
	Object  string  `json:"object"`
	Data    []T     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

func newList[T any](data []T, more bool, id func(*T) string) list[T] {
	l := list[T]{Object: "list", Data: data, HasMore: more}
	if n := len(data); n > 0 {
		first, last := id(&data[0]), id(&data[n-1])
		l.FirstID, l.LastID = &first, &last
	}
	return l
}

// pageOfList reads the parameters of a list.
func pageOfList(r *server.Request, otherwise, most int) (Page, *wire.Error) {
	q := r.URL.Query()
	p := Page{After: q.Get("after"), Limit: otherwise}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return p, wire.BadRequest("limit", "`limit` must be 1 to %d, got %q", most,
				wire.Clip(text))
		}
		p.Limit = n
	}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		p.Ascending = true
	default:
		return p, wire.BadRequest("order", "`order` must be \"asc\" or \"desc\", got %q",
			wire.Clip(order))
	}
	return p, nil
}

// listFiles answers GET /v1/files.
func (s *API) listFiles(w http.ResponseWriter, r *server.Request) error {
	p, bad := pageOfList(r, 10_000, 10_000)
	if bad != nil {
		return bad
	}
	files, more, err := s.batches.Files.List(r.Owner, r.URL.Query().Get("purpose"), p)
	if err != nil {
		return err
	}
	return s.WriteJSON(w, newList(files, more, func(f *File) string { return f.ID }))
}

// getFile answers GET /v1/files/{id}.
func (s *API) getFile(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.Files.Get(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.WriteJSON(w, o)
}

// fileContent answers GET /v1/files/{id}/content.
func (s *API) fileContent(w http.ResponseWriter, r *server.Request) error {
	content, o, err := s.batches.Files.Content(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	defer content.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(o.Bytes, 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := content.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.WriteInTime(w, buf[:n]); err != nil {
			return err
		}
	}
}

// deleteFile answers DELETE /v1/files/{id}.
func (s *API) deleteFile(w http.ResponseWriter, r *server.Request) error {
	id := r.PathValue("id")
	if err := s.batches.Files.Delete(r.Owner, id); err != nil {
		return err
	}
	return s.WriteJSON(w, deleted{id, "file", true})
}
