package batch

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// createBatch answers POST /v1/batches.
func (s *API) createBatch(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	q Request) error {
	o, err := s.batches.Create(r.Owner, q)
	if err != nil {
		return err
	}
	return s.WriteJSON(w, o)
}

func decodeBatch(f *wire.Fields) (Request, *wire.Error) {
	q := Request{InputFileID: f.Text("input_file_id"), Endpoint: f.Text("endpoint"),
		CompletionWindow: f.Text("completion_window"), Metadata: f.Metadata(),
		OutputLifetime: int64(lifetime(f, "output_expires_after") / time.Second)}
	return q, f.Err
}

// lifetime returns how long a file is to be kept, 0 when absent or null.
func lifetime(f *wire.Fields, name string) time.Duration {
	raw := f.Object(name)
	if raw == nil {
		return 0
	}
	var o struct {
		Anchor  string `json:"anchor"`
		Seconds int64  `json:"seconds"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		f.Fail(wire.BadRequest(name,
			"`%s` must be {\"anchor\": \"created_at\", \"seconds\": number}", name))
		return 0
	}
	d, bad := lifetimeOf(name, o.Anchor, o.Seconds)
	f.Fail(bad)
	return d
}

// listBatches answers GET /v1/batches, the newest first.
func (s *API) listBatches(w http.ResponseWriter, r *server.Request) error {
	p, bad := pageOfList(r, 20, 100)
	if bad != nil {
		return bad
	}
	list, more, err := s.batches.List(r.Owner, p)
	if err != nil {
		return err
	}
	return s.WriteJSON(w, newList(list, more, func(b *Batch) string { return b.ID }))
}

// getBatch answers GET /v1/batches/{id}.
func (s *API) getBatch(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.Get(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.WriteJSON(w, o)
}

// cancelBatch answers POST /v1/batches/{id}/cancel.
func (s *API) cancelBatch(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.Cancel(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.WriteJSON(w, o)
}
