package batch

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// messagesPath is the route that rows of Anthropic's batches ask.
const messagesPath = "/v1/messages"

// messageRow is a request of one of Anthropic's batches.
type messageRow struct {
	CustomID string          `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

// messageID is what Anthropic's API takes for a custom_id.
var messageID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// decodeMessages reads the requests of a batch. What is wrong with one's params is its answer.
func (s *API) decodeMessages(f *wire.Fields) ([]messageRow, *wire.Error) {
	raw, at := f.Array("requests"), wire.Path("requests")
	if f.Err != nil {
		return nil, f.Err
	}
	if raw == nil {
		return nil, wire.BadRequest("requests", "`requests` is required: a list of requests")
	}
	var rows []messageRow
	seen, most := map[string]int{}, &s.lim
	bad := wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		at := at.Index(i)
		if i == most.Rows {
			return wire.BadRequest("requests", "`requests` has more than %d requests", most.Rows)
		}
		if raw[0] != '{' {
			return at.Bad("must be an object, got %s", wire.Describe(raw))
		}
		row := messageRow{Method: http.MethodPost, URL: messagesPath,
			CustomID: wire.UnquoteOr(wire.MemberOf(raw, "custom_id", '"'), ""),
			Body:     wire.MemberOf(raw, "params", '{')}
		first, twice := seen[row.CustomID]
		switch seen[row.CustomID] = i; {
		case !messageID.MatchString(row.CustomID):
			return at.Member("custom_id").Bad("must be 1 to 64 letters, digits, - and _")
		case twice:
			return at.Member("custom_id").Bad("is %q, as that of requests[%d]", row.CustomID, first)
		case row.Body == nil:
			return at.Member("params").Bad("must be an object")
		case len(raw) > most.LineBytes-512: // of the line of the input it becomes
			return at.Bad("is longer than %d bytes", most.LineBytes-512)
		}
		rows = append(rows, row)
		return nil
	})
	if bad == nil && len(rows) == 0 {
		bad = wire.BadRequest("requests", "`requests` must not be empty")
	}
	return rows, bad
}

// createMessages answers POST /v1/messages/batches.
func (s *API) createMessages(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	rows []messageRow) error {
	u, err := s.batches.Files.Begin(r.Owner)
	if err != nil {
		return err
	}
	defer u.Abort()
	for i := range rows {
		line, err := jsonLine(&rows[i])
		if err != nil {
			return err
		}
		if _, err := u.Write(line); err != nil {
			return err
		}
	}
	o, err := s.batches.createMessages(r.Owner, len(rows), u)
	return s.writeMessages(w, r, o, err)
}

// jsonLine is a value as a line of a file.
func jsonLine(v any) ([]byte, error) {
	raw, err := jsonx.Marshal(v)
	return append(raw, '\n'), err
}

// messageRoutes are those of Anthropic's batches.
func (s *API) messageRoutes() []server.Route {
	const all, one = messagesPath + "/batches", messagesPath + "/batches/{id}"
	return []server.Route{
		server.Posted(s.Server, all, s.decodeMessages, s.createMessages,
			server.Doc{Summary: "Have conversations answered in the background",
				Answer: messageBatch{}},
			`{"requests":[{"custom_id":"a","params":{"max_tokens":64,"messages":`+
				`[{"role":"user","content":"What does os.Open do?"}]}}]}`),
		{Method: "GET", Path: all, Handler: s.listMessages,
			Doc: server.Doc{Summary: "List batches of conversations",
				Answer: wire.Page[messageBatch]{}, Query: server.PagedByID}},
		{Method: "GET", Path: one, Handler: s.getMessages,
			Doc: server.Doc{Summary: "Describe a batch of conversations", Answer: messageBatch{}}},
		{Method: "DELETE", Path: one, Handler: s.deleteMessages,
			Doc: server.Doc{Summary: "Delete a batch of conversations", Answer: deletedMessages{}}},
		{Method: "POST", Path: one + "/cancel", Handler: s.cancelMessages,
			Doc: server.Doc{Summary: "Cancel a batch of conversations", Answer: messageBatch{}}},
		{Method: "GET", Path: one + "/results", Handler: s.messageResults,
			Doc: server.Doc{Summary: "Download the answers to a batch of conversations",
				Media: "application/x-jsonl"}},
	}
}

// deletedMessages says that a batch is gone.
type deletedMessages struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

// messageBatch is the object of Anthropic's API. Times are in the form of RFC 3339.
type messageBatch struct {
	ID                string        `json:"id"`
	Type              string        `json:"type"`
	ProcessingStatus  string        `json:"processing_status"`
	RequestCounts     messageCounts `json:"request_counts"`
	EndedAt           *string       `json:"ended_at"`
	CreatedAt         string        `json:"created_at"`
	ExpiresAt         string        `json:"expires_at"`
	ArchivedAt        *string       `json:"archived_at"`
	CancelInitiatedAt *string       `json:"cancel_initiated_at"`
	ResultsURL        *string       `json:"results_url"`
}

// messageCounts are the requests of a batch, all of which are processing until the batch ends.
type messageCounts struct {
	Processing int `json:"processing"`
	Succeeded  int `json:"succeeded"`
	Errored    int `json:"errored"`
	Canceled   int `json:"canceled"`
	Expired    int `json:"expired"`
}

// messagesOf is a batch as Anthropic's API shows it, with results at an address.
func messagesOf(o *Batch, results string) messageBatch {
	at := func(times ...*int64) *string {
		for _, t := range times {
			if t != nil {
				return new(wire.Time(*t))
			}
		}
		return nil
	}
	m := messageBatch{ID: o.ID, Type: "message_batch", ProcessingStatus: "in_progress",
		RequestCounts: messageCounts{Processing: o.RequestCounts.Total},
		CreatedAt:     wire.Time(o.CreatedAt), ExpiresAt: wire.Time(*o.ExpiresAt),
		CancelInitiatedAt: at(o.CancellingAt)}
	switch {
	case o.Status == Cancelling:
		m.ProcessingStatus = "canceling"
	case o.Status.over():
		n := &o.RequestCounts
		m.ProcessingStatus, m.ResultsURL = "ended", &results
		m.EndedAt = at(o.CompletedAt, o.CancelledAt, o.ExpiredAt, o.FailedAt)
		m.RequestCounts = messageCounts{Succeeded: n.Completed, Errored: n.Failed}
		unasked := n.Total - n.Completed - n.Failed
		if o.Status == Expired {
			m.RequestCounts.Expired = unasked
		} else {
			m.RequestCounts.Canceled = unasked
		}
	}
	return m
}

func (s *API) messagesOf(r *server.Request, o *Batch) messageBatch {
	return messagesOf(o, s.URL(r, messagesPath+"/batches/"+o.ID+"/results"))
}

// writeMessages answers with a batch, unless there is an error.
func (s *API) writeMessages(w http.ResponseWriter, r *server.Request, o Batch, err error) error {
	if err != nil {
		return err
	}
	return s.WriteJSON(w, s.messagesOf(r, &o))
}

// getMessages answers GET /v1/messages/batches/{id}.
func (s *API) getMessages(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.get(r.Owner, messagesInRequest, r.PathValue("id"))
	return s.writeMessages(w, r, o, err)
}

// cancelMessages answers POST /v1/messages/batches/{id}/cancel.
func (s *API) cancelMessages(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.cancel(r.Owner, messagesInRequest, r.PathValue("id"))
	return s.writeMessages(w, r, o, err)
}

// deleteMessages answers DELETE /v1/messages/batches/{id}.
func (s *API) deleteMessages(w http.ResponseWriter, r *server.Request) error {
	id := r.PathValue("id")
	if err := s.batches.remove(r.Owner, messagesInRequest, id); err != nil {
		return err
	}
	return s.WriteJSON(w, deletedMessages{id, "message_batch_deleted"})
}

// listMessages answers GET /v1/messages/batches, the newest first.
func (s *API) listMessages(w http.ResponseWriter, r *server.Request) error {
	a, bad := wire.AskedPage(r.URL.Query())
	if bad != nil {
		return bad
	}
	p := Page{After: a.After, Limit: a.Limit}
	if a.Before != "" { // those that follow it in the other direction
		p.After, p.Ascending = a.Before, true
	}
	batches, more, err := s.batches.list(r.Owner, messagesInRequest, p)
	if err != nil {
		return err
	}
	if p.Ascending {
		slices.Reverse(batches)
	}
	list := make([]messageBatch, len(batches))
	for i := range batches {
		list[i] = s.messagesOf(r, &batches[i])
	}
	return s.WriteJSON(w, wire.NewPage(list, more, func(m *messageBatch) string { return m.ID }))
}

// messageAnswer is a line of the results.
type messageAnswer struct {
	CustomID *string       `json:"custom_id"`
	Result   messageResult `json:"result"`
}

type messageResult struct {
	Type    string          `json:"type"`
	Message json.RawMessage `json:"message,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// resultOf is what came of a row, in the words of Anthropic's API.
func (s *API) resultOf(o *outcome) messageResult {
	switch {
	case succeeded(o):
		return messageResult{Type: "succeeded", Message: o.Response.Body}
	case o.Response != nil:
		return messageResult{Type: "errored", Error: o.Response.Body}
	case o.Error.Code == CodeCancelled:
		return messageResult{Type: "canceled"}
	case o.Error.Code == CodeExpired:
		return messageResult{Type: "expired"}
	}
	_, body := s.Failure(server.Inside{ID: call.NewID(), Path: messagesPath},
		wire.BadRequest("", "%s", o.Error.Message))
	return messageResult{Type: "errored", Error: body}
}

// messageResults answers GET /v1/messages/batches/{id}/results, with a line of JSON for each row.
func (s *API) messageResults(w http.ResponseWriter, r *server.Request) error {
	o, err := s.batches.get(r.Owner, messagesInRequest, r.PathValue("id"))
	if err != nil {
		return err
	}
	if !o.Status.over() {
		return refuse(http.StatusBadRequest, "",
			"batch %s is %s: it has results once it has ended", o.ID, o.Status)
	}
	var files []io.Reader
	for _, id := range []*string{o.OutputFileID, o.ErrorFileID} {
		if id == nil {
			continue
		}
		content, _, err := s.batches.Files.Content(r.Owner, *id)
		if err != nil {
			return err
		}
		defer content.Close()
		files = append(files, content)
	}
	w.Header().Set("Content-Type", "application/x-jsonl")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	for in := newLines(io.MultiReader(files...), maxAnswer); ; {
		line, err := in.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		row := &outcome{}
		if err := json.Unmarshal(line, row); err != nil {
			return err
		}
		line, err = jsonLine(messageAnswer{row.CustomID, s.resultOf(row)})
		if err != nil {
			return err
		}
		if err := s.WriteInTime(w, line); err != nil {
			return err
		}
	}
}
