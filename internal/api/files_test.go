package api

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	openai "github.com/openai/openai-go/v3"

	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// filing makes a server that keeps files and batches.
func filing(t *testing.T, change ...func(*Options)) *testServer {
	t.Helper()
	dir := t.TempDir()
	kept := store.New(dir, store.Options{})
	s := newServer(t, append(change, func(o *Options) {
		o.Store, o.Config.Server.StoreDir = kept, dir
	})...)
	s.Batches.Start()
	t.Cleanup(func() {
		s.Batches.Stop()
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(
		10 * time.Second); s.Batches.Ready() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the store does not open")
		}
	}
	return s
}

// TestNoStoreDir names the flag that is missing.
func TestNoStoreDir(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches",
		"/v1/batches/x"} {
		rec := s.do("GET", path, "")
		if rec.Code != 404 || !strings.Contains(rec.Body.String(), "--store-dir") {
			t.Errorf("%s: %d, %s", path, rec.Code, rec.Body)
		}
	}
}

// form makes a body of parts, given as name, text; a name "file:x" is a file called x.
func form(t *testing.T, parts ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		var part io.Writer
		var err error
		if name, is := strings.CutPrefix(parts[i], "file:"); is {
			part, err = w.CreateFormFile("file", name)
		} else {
			part, err = w.CreateFormField(parts[i])
		}
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

// upload posts a body of a kind to /v1/files.
func (s *testServer) upload(body, kind string) *httptest.ResponseRecorder {
	r := newRequest("POST", "/v1/files", body)
	r.Header.Set("Content-Type", kind)
	return s.serveRequest(r)
}

// TestCompressedUpload: a form that is compressed has the file that it has without.
func TestCompressedUpload(t *testing.T) {
	s := filing(t)
	body, kind := form(t, "purpose", "user_data", "file:a", "some text")
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, body); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	r := newRequest("POST", "/v1/files", b.String())
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Content-Encoding", "gzip")
	rec := s.serveRequest(r)
	if v := object(t, rec.Body.Bytes()); rec.Code != 200 || v["bytes"] != 9.0 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	r = newRequest("POST", "/v1/files", body)
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Content-Encoding", "zstd")
	if rec := s.serveRequest(r); rec.Code != 415 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestUploads(t *testing.T) {
	s := filing(t)
	many := []string{"file:a", "x"}
	for i := range 17 {
		many = append(many, fmt.Sprint("field", i), "x")
	}
	for _, c := range []struct {
		parts []string
		param string // of the error, "-" for none
	}{
		{[]string{"purpose", "batch", "file:a.jsonl", "{}"}, "-"},
		{[]string{"file:a.jsonl", "{}", "purpose", "user_data"}, "-"},
		{[]string{"file:", "", "purpose", "batch", "other", "x"}, "-"},
		{[]string{"file:../../x\xff", "{}", "purpose", "batch"}, "-"},
		{[]string{"file:a", "x", "purpose", "batch", "expires_after[anchor]", "created_at",
			"expires_after[seconds]", "3600"}, "-"},
		{[]string{"purpose", "batch"}, "file"},
		{[]string{"purpose", "batch", "file", "not one"}, "-"},
		{[]string{"file:a", "x"}, "purpose"},
		{[]string{"file:a", "x", "purpose", "assistants"}, "purpose"},
		{[]string{"file:a", "x", "purpose", strings.Repeat("batch", 500)}, "purpose"},
		{[]string{"file:a", "x", "file:b", "y", "purpose", "batch"}, "file"},
		{[]string{"file:a", "x", "purpose", "batch", "expires_after[seconds]", "3600"},
			"expires_after.anchor"},
		{[]string{"file:a", "x", "purpose", "batch", "expires_after[anchor]", "created_at"},
			"expires_after.seconds"},
		{[]string{"file:a", "x", "purpose", "batch", "expires_after[anchor]", "created_at",
			"expires_after[seconds]", "3599"}, "expires_after.seconds"},
		{[]string{"file:a", "x", "purpose", "batch", "expires_after[anchor]", "now",
			"expires_after[seconds]", "3600"}, "expires_after.anchor"},
		{many, ""},
	} {
		body, kind := form(t, c.parts...)
		rec := s.upload(body, kind)
		if c.param == "-" {
			o := object(t, rec.Body.Bytes())
			if rec.Code != 200 || o["object"] != "file" || o["status"] != "processed" {
				t.Errorf("%.80q: %d, %s", c.parts, rec.Code, rec.Body)
			}
			continue
		}
		e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
		if rec.Code != 400 || c.param != "" && e["param"] != c.param {
			t.Errorf("%.80q: %d, %v", c.parts, rec.Code, e)
		}
	}
	body, kind := form(t, "purpose", "batch", "file:a", strings.Repeat("x", 1000))
	for name, c := range map[string]struct {
		body, Kind string
		code       int
	}{
		"JSON":      {"{}", "application/json", 415},
		"no kind":   {body, "", 415},
		"cut":       {body[:len(body)-200], kind, 400},
		"no parts":  {"", kind, 400},
		"not parts": {"hello", kind, 400},
	} {
		if rec := s.upload(c.body, c.Kind); rec.Code != c.code {
			t.Errorf("%s: %d, %s", name, rec.Code, rec.Body)
		}
	}
}

func TestLists(t *testing.T) {
	s := filing(t)
	for range 3 {
		body, kind := form(t, "purpose", "batch", "file:a", "x")
		s.upload(body, kind)
	}
	for query, want := range map[string]string{
		"":                       "3 false",
		"?limit=2":               "2 true",
		"?limit=3":               "3 false",
		"?purpose=user_data":     "0 false",
		"?order=asc&limit=1":     "1 true",
		"?after=file-":           "0 false",
		"?order=asc&after=file-": "3 false",
		"?limit=0":               "limit",
		"?limit=10001":           "limit",
		"?limit=x":               "limit",
		"?order=up":              "order",
	} {
		rec := s.do("GET", "/v1/files"+query, "")
		o := object(t, rec.Body.Bytes())
		got := ""
		if rec.Code == 200 {
			data := o["data"].([]any)
			got = fmt.Sprint(len(data), " ", o["has_more"])
			if len(data) == 0 != (o["first_id"] == nil) || len(data) > 0 && at(t, data[0],
				"id") != o["first_id"] {
				t.Errorf("%s: %s", query, rec.Body)
			}
		} else {
			got = fmt.Sprint(at(t, o, "error", "param"))
		}
		if got != want {
			t.Errorf("%q: %s instead of %s", query, got, want)
		}
	}
}

// TestBadBatches names the field of each.
func TestBadBatches(t *testing.T) {
	s := filing(t)
	body, kind := form(t, "purpose", "batch", "file:a", "x")
	id := fmt.Sprint(object(t, s.upload(body, kind).Body.Bytes())["id"])
	keys := "{"
	for i := range 17 {
		keys += fmt.Sprintf(`"%d":"",`, i)
	}
	for change, param := range map[string]string{
		`"endpoint":null`:          "endpoint",
		`"endpoint":5`:             "endpoint",
		`"endpoint":"/v1/files"`:   "endpoint",
		`"endpoint":"/tokenize"`:   "endpoint",
		`"completion_window":"1h"`: "completion_window",
		`"completion_window":null`: "completion_window",
		`"input_file_id":null`:     "input_file_id",
		`"metadata":[]`:            "metadata",
		`"metadata":{"a":1}`:       "metadata",
		`"metadata":` + strings.TrimSuffix(keys, ",") + "}":   "metadata",
		`"metadata":{"` + strings.Repeat("k", 65) + `":""}`:   "metadata",
		`"metadata":{"k":"` + strings.Repeat("v", 513) + `"}`: "metadata",
		`"output_expires_after":{"anchor":"created_at"}`:      "output_expires_after.seconds",
		`"output_expires_after":{"seconds":3600}`:             "output_expires_after.anchor",
		`"output_expires_after":{"seconds":"x"}`:              "output_expires_after",
	} {
		name, _, _ := strings.Cut(strings.Trim(change, `"`), `"`)
		text := "{" + change
		for field, value := range map[string]string{"input_file_id": id,
			"endpoint": "/v1/chat/completions", "completion_window": "24h"} {
			if field != name {
				text += fmt.Sprintf(`,%q:%q`, field, value)
			}
		}
		rec := s.do("POST", "/v1/batches", text+"}")
		if got := at(t, object(t, rec.Body.Bytes()), "error", "param"); rec.Code != 400 ||
			got != param {
			t.Errorf("%.60s: %d, %v instead of %s", change, rec.Code, got, param)
		}
	}
}

// TestClientBatch takes a batch through OpenAI's own client; another key sees nothing of it.
func TestClientBatch(t *testing.T) {
	s := filing(t, func(o *Options) { o.Config.Server.APIKeys = []string{"sk-test", "sk-other"} })
	c := newClient(t, s)
	in := `{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":[{"role":"user","content":"hi"}]}}
{"custom_id":"2","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":[]}}`
	f, err := c.Files.New(t.Context(), openai.FileNewParams{Purpose: "batch",
		File: openai.File(strings.NewReader(in), "in.jsonl", "application/jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Batches.New(t.Context(), openai.BatchNewParams{InputFileID: f.ID,
		Endpoint: "/v1/chat/completions", CompletionWindow: "24h"})
	for end := time.Now().Add(10 * time.Second); err == nil &&
		b.Status != "completed"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", b)
		}
		b, err = c.Batches.Get(t.Context(), b.ID)
	}
	if err != nil || b.RequestCounts.Completed != 1 || b.RequestCounts.Failed != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	for id, want := range map[string]string{b.OutputFileID: `"content":" hello world"`,
		b.ErrorFileID: `"param":"messages"`} {
		r, err := c.Files.Content(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(text), want) ||
			r.ContentLength != int64(len(text)) {
			t.Errorf("%s, %v", text, err)
		}
	}
	page, err := c.Batches.List(t.Context(), openai.BatchListParams{})
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != b.ID {
		t.Errorf("%+v, %v", page, err)
	}
	_, err = c.Batches.Cancel(t.Context(), b.ID)
	if e := (*openai.Error)(nil); !errors.As(err, &e) || e.StatusCode != http.StatusBadRequest {
		t.Errorf("%v", err)
	}
	for _, path := range []string{"/v1/files/" + f.ID, "/v1/files/" + f.ID + "/content",
		"/v1/batches/" + b.ID} {
		if rec := s.do("GET", path, "", "Authorization", "Bearer sk-other"); rec.Code != 404 {
			t.Errorf("%s: %d", path, rec.Code)
		}
		if rec := s.do("HEAD", path, "", "Authorization", "Bearer sk-test"); rec.Code != 200 {
			t.Errorf("%s: %d", path, rec.Code)
		}
	}
}

// TestBatchOfEmbeddings: rows of every route of vectors are answered as the routes do, and counted.
func TestBatchOfEmbeddings(t *testing.T) {
	for endpoint, c := range map[string]struct{ body, want string }{
		pooling.EmbeddingsPath: {`{"input":[[3]],"encoding_format":"float"}`, `"embedding":[`},
		pooling.ScorePath:      {`{"text_1":"a","text_2":["b"]}`, `"score":`},
		pooling.RerankPath:     {`{"query":"a","documents":["b"]}`, `"relevance_score":`},
	} {
		var m *metrics.Metrics
		s := filing(t, func(o *Options) {
			m = metrics.New(metrics.Options{ModelName: "tiny", MaxModelLen: 256})
			o.Metrics = m
			o.Info.Pooling = &open.Pooling{Type: step.PoolLast, Normalize: true, Width: 3}
		})
		s.engine.play = func(int, *engine.Request) script {
			return script{deltas: []engine.Delta{{Tokens: []int32{0}, Pooled: []float32{1, 2, 3},
				Finish: sample.FinishLength, OutputTokens: 1}}}
		}
		in := fmt.Sprintf(`{"custom_id":"1","method":"POST","url":%q,"body":%s}
{"custom_id":"2","method":"POST","url":%q,"body":{}}`, endpoint, c.body, endpoint)
		body, kind := form(t, "purpose", "batch", "file:in.jsonl", in)
		f := object(t, s.upload(body, kind).Body.Bytes())
		b := s.ok(t, "/v1/batches",
			fmt.Sprintf(`{"input_file_id":%q,"endpoint":%q,"completion_window":"24h"}`, f["id"],
				endpoint))
		for end := time.Now().Add(
			10 * time.Second); b["status"] != "completed"; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%v", b)
			}
			b = object(t, s.do("GET", "/v1/batches/"+b["id"].(string), "").Body.Bytes())
		}
		out := s.do("GET", "/v1/files/"+b["output_file_id"].(string)+"/content", "").Body.String()
		if !strings.Contains(out, c.want) || at(t, b, "request_counts", "completed") != 1.0 ||
			at(t, b, "request_counts", "failed") != 1.0 {
			t.Errorf("%s: %s, %v", endpoint, out, b)
		}
		shown := s.do("GET", "/metrics", "").Body.String()
		for _, status := range []string{"2xx", "4xx"} {
			if !strings.Contains(shown,
				`eagleray:batch_rows_total{engine="0",model_name="tiny",status="`+status+`"} 1`) {
				t.Errorf("%s: the metrics do not count a row with %s", endpoint, status)
			}
		}
		if !strings.Contains(shown, `eagleray:batch_rows_running{engine="0",model_name="tiny"} 0`) {
			t.Error("rows still run")
		}
	}
}

// FuzzUpload: whatever form is uploaded, it is a file or an error with a message, and nothing stays
// of the latter.
func FuzzUpload(f *testing.F) {
	const kind = "multipart/form-data; boundary=B"
	part := func(head, text string) string { return "--B\r\n" + head + "\r\n\r\n" + text + "\r\n" }
	const purpose, file = `Content-Disposition: form-data; name="purpose"`,
		`Content-Disposition: form-data; name="file"; filename="a"`
	f.Add(kind, part(purpose, "batch")+part(file, "{}")+"--B--\r\n")
	f.Add(kind, part(file, "{}")+part(purpose, "batch")+"--B--")
	f.Add(kind, part(file, "{}"))
	f.Add(kind, part(purpose, "batch")+part(purpose, "batch"))
	f.Add("multipart/form-data", "")
	f.Add("multipart/form-data; boundary=", "--\r\n")
	f.Add(kind, part(`Content-Disposition: form-data; name="expires_after[seconds]"`,
		"3600")+part(file, ""))
	dir := f.TempDir()
	kept := store.New(dir, store.Options{})
	s := newServer(f, func(o *Options) { o.Store, o.Config.Server.StoreDir = kept, dir })
	s.Batches.Start()
	f.Cleanup(func() {
		s.Batches.Stop()
		kept.Close()
	})
	for s.Batches.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	f.Fuzz(func(t *testing.T, kind, body string) {
		rec := s.upload(body, kind)
		o := object(t, rec.Body.Bytes())
		switch {
		case rec.Code == 200:
			id := o["id"].(string)
			if n := s.do("GET", "/v1/files/"+id+"/content",
				"").Body.Len(); float64(n) != o["bytes"] {
				t.Errorf("%d bytes of %v", n, o)
			}
			if rec := s.do("DELETE", "/v1/files/"+id, ""); rec.Code != 200 {
				t.Errorf("not deleted: %s", rec.Body)
			}
		case rec.Code < 400 || rec.Code >= 500 || at(t, o, "error", "message") == "":
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "files")); err == nil && len(left) > 0 {
			t.Errorf("%d files stay", len(left))
		}
	})
}
