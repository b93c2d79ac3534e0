package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/openapi"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// everyRoute is a server with every flag that adds routes.
func everyRoute(t *testing.T, change ...func(*Options)) *testServer {
	t.Helper()
	page, err := dashboard.New(dashboard.Options{Engine: stillEngine{},
		Events: &dashboard.Events{}, Measure: measureNothing})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, append([]func(*Options){keeping(t, store.Options{}), func(o *Options) {
		o.Adapters = &adapters.Control{}
		o.Dashboard, o.Elastic, o.Trainer = page, &fakeElastic{}, &rlhf.Control{}
		o.Config.Server.EnableElasticEP = true
		o.Config.Server.EnableRLHF, o.Config.Server.Answers.TokenizerInfo = true, true
		o.Ranks = func() any { return nil }
		o.Experts = func(context.Context) ([][]engine.ExpertLoad, error) { return nil, nil }
	}}, change...)...)
	return s
}

// TestOpenAPI: every route is in the document, with what it reads and answers, and the document is
// one of OpenAPI.
func TestOpenAPI(t *testing.T) {
	s := everyRoute(t, func(o *Options) { o.Config.Server.APIKeys = []string{"k"} })
	rec := s.do("GET", openapi.DocumentPath, "")
	doc := object(t, rec.Body.Bytes())
	if rec.Code != 200 || doc["openapi"] != "3.1.0" || at(t, doc, "info", "version") != "1.2.3" {
		t.Fatalf("%d %v %v", rec.Code, doc["openapi"], doc["info"])
	}
	paths := doc["paths"].(map[string]any)
	ids, operations := map[string]bool{}, 0
	for _, r := range s.Routes() {
		if r.Method == http.MethodHead || r.Shape != nil {
			continue
		}
		path := strings.ReplaceAll(r.Path, "...}", "}")
		item, _ := paths[path].(map[string]any)
		one, _ := item[strings.ToLower(r.Method)].(map[string]any)
		if one == nil {
			t.Errorf("%s %s is not in the document", r.Method, r.Path)
			continue
		}
		operations++
		id := one["operationId"].(string)
		if ids[id] || one["summary"] == "" || at(t, one, "tags", 0) == "" {
			t.Errorf("%s %s has no description of its own: %v", r.Method, r.Path, one)
		}
		ids[id] = true
		if public := one["security"] == nil; public != r.Public {
			t.Errorf("%s %s needs a key: %v", r.Method, r.Path, !public)
		}
		var names []string
		parameters, _ := one["parameters"].([]any)
		for _, p := range parameters {
			if at(t, p, "in") == "path" {
				names = append(names, "{"+at(t, p, "name").(string)+"}")
			}
		}
		if want := regexp.MustCompile(`\{\w+\}`).FindAllString(path, -1); !slices.Equal(names, want) {
			t.Errorf("%s has the parameters %v", path, names)
		}
		if r.Doc.Body != nil && one["requestBody"] == nil {
			t.Errorf("%s %s has a body, and shows none", r.Method, r.Path)
		}
	}
	for path, item := range paths {
		operations -= len(item.(map[string]any))
		if len(item.(map[string]any)) == 0 {
			t.Errorf("%s has no methods", path)
		}
	}
	if operations != 0 {
		t.Errorf("%d operations are no routes", -operations)
	}
	types := at(t, doc, "components", "schemas").(map[string]any)
	used := map[string]bool{}
	for _, ref := range regexp.MustCompile(`"#/components/schemas/([^"]+)"`).FindAllStringSubmatch(
		rec.Body.String(), -1) {
		if used[ref[1]] = true; types[ref[1]] == nil {
			t.Errorf("no type %s", ref[1])
		}
	}
	for name := range types {
		if !regexp.MustCompile(`^[A-Za-z0-9._-]+$`).MatchString(name) || !used[name] {
			t.Errorf("type %q is used: %v", name, used[name])
		}
	}
	chat := at(t, paths, "/v1/chat/completions", "post").(map[string]any)
	in := at(t, chat, "requestBody", "content", "application/json", "schema").(map[string]any)
	if fmt.Sprint(in["required"]) != "[messages]" || fmt.Sprint(at(t, in, "properties",
		"temperature", "type")) != "[number null]" || at(t, chat, "responses", "200", "content",
		"text/event-stream") == nil {
		t.Errorf("chat is %v", chat)
	}
	if p := in["properties"].(map[string]any); p["web_search_options"] != nil || len(p) < 60 {
		t.Errorf("chat has %d fields", len(p))
	}
	in = at(t, paths, "/v1/responses", "post", "requestBody", "content", "application/json",
		"schema", "properties").(map[string]any)
	if in["messages"] != nil || in["n"] != nil || in["conversation"] == nil {
		t.Errorf("a response has the fields %v", in)
	}
}

// described checks answers against the document that a server has of its routes.
type described struct {
	t   *testing.T
	doc map[string]any
}

// schema is that of an answer.
func (d described) schema(method, path, status string) any {
	one := at(d.t, d.doc, "paths", path, strings.ToLower(method), "responses", status)
	return at(d.t, one, "content", "application/json", "schema")
}

// check wants a value to be valid by a schema, with no members that the schema does not have.
func (d described) check(where string, s, v any) {
	m := s.(map[string]any)
	if ref, ok := m["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		d.check(where, at(d.t, d.doc, "components", "schemas", name), v)
		return
	}
	if list, ok := m["anyOf"].([]any); ok {
		if v != nil {
			d.check(where, list[0], v)
		}
		return
	}
	if kinds := fmt.Sprint(m["type"]); m["type"] != nil && !slices.Contains(strings.Fields(
		strings.Trim(kinds, "[]")), kindOf(v)) && !(kindOf(v) == "integer" &&
		strings.Contains(kinds, "number")) {
		d.t.Errorf("%s is %v, not of type %s", where, v, kinds)
		return
	}
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if m["items"] != nil {
				d.check(fmt.Sprintf("%s[%d]", where, i), m["items"], e)
			}
		}
	case map[string]any:
		properties, _ := m["properties"].(map[string]any)
		required, _ := m["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				d.t.Errorf("%s has no %v", where, name)
			}
		}
		for name, e := range v {
			switch {
			case properties[name] != nil:
				d.check(where+"."+name, properties[name], e)
			case m["additionalProperties"] != nil:
				d.check(where+"."+name, m["additionalProperties"], e)
			case properties != nil:
				d.t.Errorf("%s.%s is not described", where, name)
			}
		}
	}
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// TestOpenAPIIsTrue: examples are answered, and answers are as they are described. So are errors.
func TestOpenAPIIsTrue(t *testing.T) {
	embeds := func(o *Options) {
		o.Info.Pooling = &open.Pooling{Type: step.PoolLast, Width: 3, Normalize: true}
		o.Engine = &fakeEngine{play: poolVectors}
	}
	for name, s := range map[string]*testServer{"generates": everyRoute(t),
		"embeds": everyRoute(t, embeds)} {
		rec := s.do("GET", openapi.DocumentPath, "")
		if rec.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", name, rec.Code, rec.Body)
		}
		d := described{t, object(t, rec.Body.Bytes())}
		answered := 0
		for _, r := range s.Routes() {
			where := name + ": " + r.Method + " " + r.Path
			var bodies []string
			switch {
			case strings.Contains(r.Path, "{"), r.Doc.Group == "Trainers",
				r.Doc.Group == "Adapters",
				r.Method == "HEAD",
				r.Shape != nil, r.Path == dashboard.LivePath, r.Path == "/v1/batches",
				r.Path == "/v1/messages/batches", r.Path == "/v1/files",
				r.Path == openapi.DocumentPath:
				continue // of what there must be first, or no JSON
			case r.Method == "GET":
				bodies = []string{""}
			case r.Doc.Body != nil:
				bodies = r.Doc.Body.Examples
			}
			for _, body := range bodies {
				rec := s.do(r.Method, r.Path, body)
				v := json.RawMessage(rec.Body.Bytes())
				kind, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";")
				switch {
				case rec.Code == http.StatusOK && r.Doc.Media != "":
					if kind != r.Doc.Media && rec.Body.Len() > 0 {
						t.Errorf("%s is %s", where, kind)
					}
				case rec.Code == http.StatusOK && r.Doc.Answer == nil:
					if rec.Body.Len() > 0 {
						t.Errorf("%s has the answer %s", where, rec.Body)
					}
				case rec.Code == http.StatusOK:
					answered++
					d.check(where, d.schema(r.Method, r.Path, "200"), decoded(t, v))
				case !otherModel.Match(v):
					t.Errorf("%s with %s: %d %s", where, body, rec.Code, rec.Body)
				}
			}
			if r.Method == "POST" && r.Doc.Body != nil {
				rec := s.do("POST", r.Path, `[]`)
				if rec.Code == http.StatusOK {
					t.Errorf("%s answers []", where)
				}
				d.check(where, d.schema("POST", r.Path, "default"),
					decoded(t, rec.Body.Bytes()))
			}
		}
		if want := map[string]int{"generates": 15, "embeds": 10}[name]; answered < want {
			t.Errorf("%s: only %d answers were checked", name, answered)
		}
	}
}

// otherModel is the answer to what is of models of another kind.
var otherModel = regexp.MustCompile("The model does not|supported: this model has")

func decoded(t *testing.T, raw []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

// TestDocsPage: the page has its own style and nothing else, and its links lead somewhere.
func TestDocsPage(t *testing.T) {
	s := everyRoute(t)
	rec := s.do("GET", openapi.PagePath, "")
	page := rec.Body.String()
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	policy := rec.Header().Get("Content-Security-Policy")
	if rec.Code != 200 || !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/html") ||
		!strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-"+
			base64.StdEncoding.EncodeToString(sum[:])+"';") || strings.Contains(policy, "unsafe") {
		t.Errorf("%d, policy %q", rec.Code, policy)
	}
	for _, no := range []string{"<script", " style=", "javascript:", "//", "<img", "ZgotmplZ"} {
		if strings.Contains(strings.ReplaceAll(page, style, ""), no) {
			t.Errorf("the page has %q", no)
		}
	}
	for _, link := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if n := strings.Count(page, `id="`+link[1]+`"`); n != 1 {
			t.Errorf("%d places are named %s", n, link[1])
		}
	}
	for _, want := range []string{"/v1/conversations/{id}/items", "openai.ChatResponse",
		"What does os.Open do?"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	off := everyRoute(t, func(o *Options) { o.Config.Server.DisableDocs = true })
	for _, path := range []string{openapi.DocumentPath, openapi.PagePath} {
		if rec := off.do("GET", path, ""); rec.Code != http.StatusNotFound {
			t.Errorf("%s with the flag: %d", path, rec.Code)
		}
	}
}
