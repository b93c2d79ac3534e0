package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Options of a Document.
type Options struct {
	// Version is the program's, Root the path under which a proxy has the server, "" for none.
	Version, Root string
	// Keys says that the server wants an API key.
	Keys   bool
	Limits wire.Limits
	// Groups are those of the routes, in their order.
	Groups []string
	// Error is a value of the type of a path's errors.
	Error func(path string) any
}

// Document is an OpenAPI document, version 3.1.
type Document struct {
	OpenAPI    string                           `json:"openapi"`
	Info       info                             `json:"info"`
	Servers    []serverURL                      `json:"servers"`
	Tags       []tag                            `json:"tags"`
	Paths      map[string]map[string]*operation `json:"paths"`
	Components components                       `json:"components"`
}

type info struct {
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
}

type serverURL struct {
	URL string `json:"url"`
}

type tag struct {
	Name string `json:"name"`
}

type components struct {
	Schemas  schemas                   `json:"schemas"`
	Security map[string]securityScheme `json:"securitySchemes,omitempty"`
}

type securityScheme struct {
	Type   string `json:"type"`
	Scheme string `json:"scheme,omitempty"`
	In     string `json:"in,omitempty"`
	Name   string `json:"name,omitempty"`
}

type operation struct {
	ID          string                `json:"operationId"`
	Summary     string                `json:"summary"`
	Tags        []string              `json:"tags"`
	Parameters  []parameter           `json:"parameters,omitempty"`
	RequestBody *requestBody          `json:"requestBody,omitempty"`
	Responses   map[string]response   `json:"responses"`
	Security    []map[string][]string `json:"security,omitempty"`
}

type parameter struct {
	Name     string `json:"name"`
	In       string `json:"in"`
	Required bool   `json:"required"`
	Schema   schema `json:"schema"`
}

type requestBody struct {
	Required bool                 `json:"required"`
	Content  map[string]mediaType `json:"content"`
}

type response struct {
	Description string               `json:"description"`
	Content     map[string]mediaType `json:"content,omitempty"`
}

type mediaType struct {
	Schema   schema             `json:"schema"`
	Examples map[string]example `json:"examples,omitempty"`
}

type example struct {
	Value json.RawMessage `json:"value"`
}

// New describes routes.
func New(routes []server.Route, o Options) *Document {
	d := &Document{OpenAPI: "3.1.0",
		Info: info{Title: "Eagle Ray", Version: o.Version, Description: "The routes of this " +
			"server, made of their types. Fields of a request that are not listed are ignored, " +
			"or refused by name where they ask for something."},
		Servers:    []serverURL{{cmp.Or(o.Root, "/")}},
		Paths:      map[string]map[string]*operation{},
		Components: components{Schemas: schemas{}}}
	for _, name := range o.Groups {
		d.Tags = append(d.Tags, tag{name})
	}
	if o.Keys {
		d.Components.Security = map[string]securityScheme{
			"bearer": {Type: "http", Scheme: "bearer"},
			"key":    {Type: "apiKey", In: "header", Name: "X-Api-Key"}}
	}
	routes = slices.Clone(routes)
	sort.Slice(routes, func(i, j int) bool {
		a, b := &routes[i], &routes[j]
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method)) < 0
	})
	for _, r := range routes {
		// A GET answers each HEAD; what clients of one shape get is another form of what others do.
		if r.Method == http.MethodHead || r.Shape != nil {
			continue
		}
		path := strings.ReplaceAll(r.Path, "...}", "}")
		if d.Paths[path] == nil {
			d.Paths[path] = map[string]*operation{}
		}
		d.Paths[path][strings.ToLower(r.Method)] = d.operation(&r, &o)
	}
	return d
}

// operation describes a route.
func (d *Document) operation(r *server.Route, o *Options) *operation {
	doc := &r.Doc
	one := &operation{ID: operationID(r), Summary: doc.Summary, Tags: []string{doc.Group},
		Responses: map[string]response{"200": d.answer(doc), "default": d.failure(o.Error(r.Path))}}
	for segment := range strings.SplitSeq(r.Path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			one.Parameters = append(one.Parameters, parameter{Required: true, In: "path",
				Name: strings.TrimRight(name, ".}"), Schema: schema{"type": "string"}})
		}
	}
	for _, p := range doc.Query {
		s := schema{"type": p.Type}
		if p.Values != nil {
			s["enum"] = p.Values
		}
		one.Parameters = append(one.Parameters, parameter{Name: p.Name, In: "query", Schema: s})
	}
	if o.Keys && !r.Public {
		one.Security = []map[string][]string{{"bearer": {}}, {"key": {}}}
	}
	if doc.Body != nil {
		one.RequestBody = d.body(doc.Body, o.Limits)
	}
	return one
}

// operationID is a name that programs make of a route: post_v1_responses_id.
func operationID(r *server.Route) string {
	words := strings.FieldsFunc(r.Path, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	})
	return strings.Join(append([]string{strings.ToLower(r.Method)}, words...), "_")
}

// media is the type of JSON.
const media = "application/json"

// body describes what a decoder reads.
func (d *Document) body(b *server.Body, lim wire.Limits) *requestBody {
	m := mediaType{Schema: schema{"type": "object"}}
	if b.Value != nil {
		m.Schema = d.Components.Schemas.of(reflect.TypeOf(b.Value))
	}
	for i, text := range b.Examples {
		if m.Examples == nil {
			m.Examples = map[string]example{}
		}
		m.Examples[fmt.Sprint("example", i+1)] = example{json.RawMessage(text)}
	}
	if b.Decode != nil {
		shape := wire.Read(b.Decode, lim, b.Examples...)
		shape.Try(b.Decode, lim, b.Examples...)
		shape.Try(b.Decode, lim, b.Forms...)
		m.Schema = requestOf(shape)
	}
	return &requestBody{Required: b.Decode != nil || b.Media != "",
		Content: map[string]mediaType{cmp.Or(b.Media, media): m}}
}

// answer describes what a route answers with status 200.
func (d *Document) answer(doc *server.Doc) response {
	a := response{Description: "the answer"}
	switch {
	case doc.Answer != nil:
		s := d.Components.Schemas.of(reflect.TypeOf(doc.Answer))
		a.Content = map[string]mediaType{cmp.Or(doc.Media, media): {Schema: s}}
	case doc.Media != "":
		a.Content = map[string]mediaType{doc.Media: {Schema: schema{"type": "string"}}}
	default:
		a.Description = "done"
	}
	if doc.Events != nil {
		a.Description = "the answer, or with `stream` its parts as server-sent events: the " +
			"schema is that of the data of one. OpenAI's end with one whose data is [DONE]."
		var list []schema
		for _, v := range doc.Events {
			list = append(list, d.Components.Schemas.of(reflect.TypeOf(v)))
		}
		a.Content["text/event-stream"] = mediaType{Schema: oneOf(list)}
	}
	return a
}

// failure describes every other answer.
func (d *Document) failure(v any) response {
	return response{Description: "an error", Content: map[string]mediaType{
		media: {Schema: d.Components.Schemas.of(reflect.TypeOf(v))}}}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
