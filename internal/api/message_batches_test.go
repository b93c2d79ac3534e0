package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
)

const messageBatches = "/v1/messages/batches"

// messageRow is a request of a batch, whose params have more members.
func messageRow(id, more string) string {
	return `{"custom_id":"` + id + `","params":{
		"model":"tiny",` + hiMessage + more + `}}`
}

// endedBatch is one of Anthropic's batches once it has ended.
func (s *testServer) endedBatch(t *testing.T, id string) map[string]any {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		v := object(t, s.do("GET", messageBatches+"/"+id, "").Body.Bytes())
		if v["processing_status"] == "ended" {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("it does not end: %v", v)
		}
	}
}

// results are the lines of a batch by custom_id.
func (s *testServer) results(t *testing.T, id string) map[string]map[string]any {
	t.Helper()
	rec := s.do("GET", messageBatches+"/"+id+"/results", "")
	if rec.Code != 200 || rec.Header().Get("Content-Type") != "application/x-jsonl" {
		t.Fatalf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	all := map[string]map[string]any{}
	for line := range strings.Lines(rec.Body.String()) {
		v := object(t, []byte(line))
		all[v["custom_id"].(string)] = v["result"].(map[string]any)
	}
	return all
}

// TestMessageBatches: a batch of Anthropic's API begins, ends, has its results, and is deleted.
func TestMessageBatches(t *testing.T) {
	s := filing(t)
	created := s.ok(t, messageBatches, `{"requests":[`+strings.Join([]string{
		messageRow("good", ""), messageRow("hot", `,"temperature":-1`),
		messageRow("streamed", `,"stream":true`),
		`{"custom_id":"other","params":{"model":"none",` + hiMessage + `}}`,
		`{"params":{"messages":[]},"custom_id":"no-max"}`}, ",")+`]}`)
	id := created["id"].(string)
	if !strings.HasPrefix(id, "msgbatch_") || created["type"] != "message_batch" ||
		created["processing_status"] != "in_progress" || created["results_url"] != nil ||
		created["ended_at"] != nil || at(t, created, "request_counts", "processing") != 5.0 {
		t.Errorf("created %v", created)
	}
	for _, name := range []string{"created_at", "expires_at"} {
		if _, err := time.Parse(time.RFC3339, created[name].(string)); err != nil {
			t.Error(name, err)
		}
	}
	ended := s.endedBatch(t, id)
	same(t, ended["request_counts"].(map[string]any),
		`{"processing":0,"succeeded":1,"errored":4,"canceled":0,"expired":0}`)
	if ended["results_url"] != "http://localhost:8000"+messageBatches+"/"+id+"/results" ||
		ended["ended_at"] == nil || ended["cancel_initiated_at"] != nil {
		t.Errorf("ended %v", ended)
	}
	all := s.results(t, id)
	if len(all) != 5 || at(t, all["good"], "type") != "succeeded" ||
		at(t, all["good"], "message", "content", 0, "text") != " hello world" ||
		at(t, all["good"], "message", "type") != "message" {
		t.Errorf("%v", all)
	}
	for row, want := range map[string]string{"hot": "invalid_request_error temperature",
		"streamed": "invalid_request_error 'stream'", "other": "not_found_error The model",
		"no-max": "invalid_request_error `max_tokens` is required"} {
		e := all[row]
		got := fmt.Sprint(at(t, e, "error", "error", "type"), " ", at(t, e, "error", "error",
			"message"))
		if e["type"] != "errored" || at(t, e, "error", "type") != "error" ||
			!strings.HasPrefix(got, want) ||
			!strings.HasPrefix(text(at(t, e, "error", "request_id")), "req_") {
			t.Errorf("%s: %v", row, e)
		}
	}
	// Neither API shows the batches of the other.
	list := object(t, s.do("GET", messageBatches, "").Body.Bytes())
	if len(list["data"].([]any)) != 1 || list["first_id"] != id || list["has_more"] != false {
		t.Errorf("list %v", list)
	}
	if v := object(t, s.do("GET", "/v1/batches", "").Body.Bytes()); len(v["data"].([]any)) != 0 {
		t.Errorf("OpenAI's list %v", v)
	}
	if rec := s.do("GET", "/v1/batches/"+id, ""); rec.Code != 404 {
		t.Errorf("OpenAI's %d", rec.Code)
	}
	if rec := s.do("POST", messageBatches+"/"+id+"/cancel", ""); rec.Code != 400 {
		t.Errorf("cancelled after its end: %d %s", rec.Code, rec.Body)
	}
	gone := object(t, s.do("DELETE", messageBatches+"/"+id, "").Body.Bytes())
	same(t, gone, `{"id":"`+id+`","type":"message_batch_deleted"}`)
	for _, path := range []string{"", "/results"} {
		rec := s.do("GET", messageBatches+"/"+id+path, "")
		if rec.Code != 404 || at(t, object(t, rec.Body.Bytes()), "error",
			"type") != "not_found_error" {
			t.Errorf("deleted: %d %s", rec.Code, rec.Body)
		}
	}
	if v := object(t, s.do("GET", "/v1/files", "").Body.Bytes()); len(v["data"].([]any)) != 0 {
		t.Errorf("files are left: %v", v)
	}
}

// TestMessageBatchCancelled: rows that are not answered by then say that they are cancelled.
func TestMessageBatchCancelled(t *testing.T) {
	s := filing(t)
	s.engine.play = func(n int, r *engine.Request) script {
		p := sayHello(n, r)
		if n > 0 {
			p.deltas, p.hang = nil, true
		}
		return p
	}
	id := s.ok(t, messageBatches, `{"requests":[`+messageRow("a", "")+`]}`)["id"].(string)
	s.endedBatch(t, id)
	id = s.ok(t, messageBatches, `{"requests":[`+messageRow("b", "")+","+messageRow("c",
		"")+`]}`)["id"].(string)
	rec := s.do("GET", messageBatches+"/"+id+"/results", "")
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), "in_progress") {
		t.Errorf("results before the end: %d %s", rec.Code, rec.Body)
	}
	if rec := s.do("DELETE", messageBatches+"/"+id, ""); rec.Code != 400 {
		t.Errorf("deleted before the end: %d %s", rec.Code, rec.Body)
	}
	v := s.ok(t, messageBatches+"/"+id+"/cancel", "{}")
	if v["processing_status"] != "canceling" || v["cancel_initiated_at"] == nil {
		t.Errorf("%v", v)
	}
	ended := s.endedBatch(t, id)
	same(t, ended["request_counts"].(map[string]any),
		`{"processing":0,"succeeded":0,"errored":0,"canceled":2,"expired":0}`)
	for row, r := range s.results(t, id) {
		same(t, r, `{"type":"canceled"}`)
		if row != "b" && row != "c" {
			t.Error(row)
		}
	}
}

// TestMessageBatchList pages through a list in both directions.
func TestMessageBatchList(t *testing.T) {
	s := filing(t)
	var ids []string // the newest first
	for range 5 {
		v := s.ok(t, messageBatches, `{"requests":[`+messageRow("a", "")+`]}`)
		ids = append([]string{v["id"].(string)}, ids...)
	}
	for query, want := range map[string]struct {
		ids  []string
		more bool
	}{
		"?limit=2":                        {ids[:2], true},
		"?limit=2&after_id=" + ids[1]:     {ids[2:4], true},
		"?limit=2&after_id=" + ids[3]:     {ids[4:], false},
		"?limit=2&before_id=" + ids[4]:    {ids[2:4], true},
		"?limit=1000&before_id=" + ids[2]: {ids[:2], false},
	} {
		v := object(t, s.do("GET", messageBatches+query, "").Body.Bytes())
		var got []string
		for _, b := range v["data"].([]any) {
			got = append(got, b.(map[string]any)["id"].(string))
		}
		if fmt.Sprint(got) != fmt.Sprint(want.ids) || v["has_more"] != want.more ||
			v["first_id"] != got[0] || v["last_id"] != got[len(got)-1] {
			t.Errorf("%s: %v %v, not %v", query, got, v["has_more"], want)
		}
	}
}

func TestMessageBatchRefusals(t *testing.T) {
	s := filing(t)
	for name, c := range map[string]struct{ body, message string }{
		"none":      {`{}`, "`requests` is required"},
		"empty":     {`{"requests":[]}`, "must not be empty"},
		"object":    {`{"requests":{}}`, "`requests` must be an array"},
		"number":    {`{"requests":[1]}`, "`requests[0]` must be an object"},
		"no id":     {`{"requests":[{"params":{}}]}`, "`requests[0].custom_id` must be"},
		"id":        {`{"requests":[{"custom_id":"a b","params":{}}]}`, "custom_id"},
		"no params": {`{"requests":[{"custom_id":"a"}]}`, "`requests[0].params` must be"},
		"params":    {`{"requests":[{"custom_id":"a","params":[]}]}`, "params` must be"},
		"twice": {`{"requests":[` + messageRow("a", "") + `,` + messageRow("a", "") + `]}`,
			"`requests[1].custom_id` is \"a\", as that of requests[0]"},
		"long": {`{"requests":[` + messageRow("a", `,"x":"`+strings.Repeat("x", 1<<20)+`"`) + `]}`,
			"`requests[0]` is longer"},
	} {
		rec := s.post(messageBatches, c.body)
		v := object(t, rec.Body.Bytes())
		if m, _ := at(t, v, "error", "message").(string); rec.Code != http.StatusBadRequest ||
			v["type"] != "error" || !strings.Contains(m, c.message) {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	rec := newServer(t).post(messageBatches, `{"requests":[`+messageRow("a", "")+`]}`)
	if rec.Code != 404 || !strings.Contains(rec.Body.String(), "--store-dir") ||
		!strings.Contains(rec.Body.String(), "not_found_error") {
		t.Errorf("without a store: %d %s", rec.Code, rec.Body)
	}
}
