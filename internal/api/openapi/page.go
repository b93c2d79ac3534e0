package openapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"slices"
	"strings"
)

//go:embed page.css
var style string

// head is how the page begins.
const head = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s: routes</title>
`

// shownRoute is what the page shows of a route.
type shownRoute struct {
	Anchor, Method, Path, Summary string
	Key                           bool
	Parameters                    []shownField
	Body                          *shownBody
	Answer                        []shownAnswer
}

type shownBody struct {
	Media    string
	Type     shownSchema
	Fields   []shownField
	Examples []string
}

type shownAnswer struct {
	Media string
	Type  shownSchema
}

type shownField struct {
	Name, Where string
	Required    bool
	Type        shownSchema
}

// shownSchema is a schema in a line: words, with a link to the type in between, if it is of one.
type shownSchema struct{ Before, Link, After string }

// page renders the document.
func (d *Document) page() ([]byte, error) {
	groups := make([][]shownRoute, len(d.Tags))
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			one := d.Paths[path][method]
			i := slices.Index(d.Tags, tag{one.Tags[0]})
			r, err := showRoute(method, path, one)
			if err != nil {
				return nil, err
			}
			groups[i] = append(groups[i], r)
		}
	}
	var w writer
	w.put(head, d.Info.Title)
	w.WriteString("<style>" + style + "</style>\n</head>\n<body>\n")
	w.put("<header>\n<h1>%s <small>%s</small></h1>\n<p>%s</p>\n", d.Info.Title, d.Info.Version,
		d.Info.Description)
	w.WriteString(`<p><a href="openapi.json">openapi.json</a> has the same for programs.`)
	if d.Components.Security != nil {
		w.WriteString(` Routes that are marked need an API key, as
<code>Authorization: Bearer</code> or <code>X-Api-Key</code>.`)
	}
	w.WriteString("</p>\n<nav aria-label=\"Groups\"><ul>\n")
	anchor := func(t tag) string { return "group-" + strings.ReplaceAll(t.Name, " ", "-") }
	for _, t := range d.Tags {
		w.put("<li><a href=\"#%s\">%s</a></li>\n", anchor(t), t.Name)
	}
	w.WriteString("<li><a href=\"#types\">Types</a></li>\n</ul></nav>\n</header>\n<main>\n")
	for i, t := range d.Tags {
		w.put("<section aria-labelledby=\"%s\">\n<h2 id=\"%[1]s\">%s</h2>\n", anchor(t), t.Name)
		for _, r := range groups[i] {
			w.route(&r)
		}
		w.WriteString("</section>\n")
	}
	w.WriteString("<section aria-labelledby=\"types\">\n<h2 id=\"types\">Types</h2>\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		w.put("<h3 id=\"type-%s\"><code>%[1]s</code></h3>\n", name)
		w.fields(showFields(d.Components.Schemas[name]))
	}
	w.WriteString("</section>\n</main>\n</body>\n</html>\n")
	return w.Bytes(), nil
}

// writer writes HTML. (With html/template the linker keeps every exported method of the program,
// which templates may name: 3.5 MB.)
type writer struct{ bytes.Buffer }

// put writes a format with texts, which are escaped.
func (w *writer) put(format string, texts ...string) {
	escaped := make([]any, len(texts))
	for i, s := range texts {
		escaped[i] = html.EscapeString(s)
	}
	fmt.Fprintf(&w.Buffer, format, escaped...)
}

// putIf writes a format with a text, if there is one.
func (w *writer) putIf(format, text string) {
	if text != "" {
		w.put(format, text)
	}
}

func (w *writer) schema(s *shownSchema) {
	w.put("%s", s.Before)
	w.putIf("<a href=\"#type-%s\">%[1]s</a>", s.Link)
	w.put("%s", s.After)
}

func (w *writer) fields(list []shownField) {
	w.WriteString(`<div class="wide" tabindex="0" role="region" aria-label="fields"><table>
<thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Needed</th></tr></thead>
<tbody>
`)
	for i := range list {
		f := &list[i]
		w.put("<tr><th scope=\"row\"><code>%s</code>", f.Name)
		w.putIf(" <small>%s</small>", f.Where)
		w.WriteString("</th>\n<td>")
		w.schema(&f.Type)
		w.WriteString("</td><td>")
		if f.Required {
			w.WriteString("yes")
		}
		w.WriteString("</td></tr>\n")
	}
	w.WriteString("</tbody></table></div>\n")
}

func (w *writer) route(r *shownRoute) {
	w.put("<details id=\"%s\">\n<summary><b class=\"%s\">%[2]s</b> <code>%s</code> "+
		"<span>%s</span>", r.Anchor, r.Method, r.Path, r.Summary)
	if r.Key {
		w.WriteString(" <small>key</small>")
	}
	w.WriteString("</summary>\n")
	if len(r.Parameters) > 0 {
		w.WriteString("<h3>Parameters</h3>\n")
		w.fields(r.Parameters)
	}
	if b := r.Body; b != nil {
		w.put("<h3>Body <small>%s</small></h3>\n", b.Media)
		if len(b.Fields) > 0 {
			w.fields(b.Fields)
		} else {
			w.WriteString("<p>")
			w.schema(&b.Type)
			w.WriteString("</p>\n")
		}
		for _, text := range b.Examples {
			w.put("<pre tabindex=\"0\">%s</pre>\n", text)
		}
	}
	w.WriteString("<h3>Answer</h3>\n")
	for i := range r.Answer {
		w.put("<p><small>%s</small> ", r.Answer[i].Media)
		w.schema(&r.Answer[i].Type)
		w.WriteString("</p>\n")
	}
	if len(r.Answer) == 0 {
		w.WriteString("<p>no body</p>\n")
	}
	w.WriteString("</details>\n")
}

func showRoute(method, path string, o *operation) (shownRoute, error) {
	r := shownRoute{Anchor: o.ID, Method: strings.ToUpper(method), Path: path, Summary: o.Summary,
		Key: o.Security != nil}
	for _, p := range o.Parameters {
		r.Parameters = append(r.Parameters, shownField{p.Name, p.In, p.Required, show(p.Schema)})
	}
	if o.RequestBody != nil {
		for kind, m := range o.RequestBody.Content {
			r.Body = &shownBody{Media: kind, Type: show(m.Schema), Fields: showFields(m.Schema)}
			for _, name := range slices.Sorted(maps.Keys(m.Examples)) {
				var b bytes.Buffer
				if err := json.Indent(&b, m.Examples[name].Value, "", "  "); err != nil {
					return r, fmt.Errorf("example of %s: %w", path, err)
				}
				r.Body.Examples = append(r.Body.Examples, b.String())
			}
		}
	}
	content := o.Responses["200"].Content
	for _, kind := range slices.Sorted(maps.Keys(content)) {
		r.Answer = append(r.Answer, shownAnswer{kind, show(content[kind].Schema)})
	}
	return r, nil
}

// showFields are the properties of an object, those that are required first.
func showFields(s schema) []shownField {
	properties, _ := s["properties"].(schema)
	required, _ := s["required"].([]string)
	var list, rest []shownField
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		f := shownField{Name: name, Required: slices.Contains(required, name),
			Type: show(properties[name].(schema))}
		if f.Required {
			list = append(list, f)
		} else {
			rest = append(rest, f)
		}
	}
	return append(list, rest...)
}

// join appends another schema. There is one link: that of a second type is its name.
func (v *shownSchema) join(word string, next *shownSchema) {
	if v.Link == "" {
		v.Before += v.After + word + next.Before
		v.Link, v.After = next.Link, next.After
		return
	}
	v.After += word + next.Before + next.Link + next.After
}

// show is a schema in words.
func show(s schema) shownSchema {
	if ref, ok := s["$ref"].(string); ok {
		return shownSchema{Link: strings.TrimPrefix(ref, prefix)}
	}
	if list, ok := s["anyOf"].([]schema); ok {
		v := show(list[0])
		for _, more := range list[1:] {
			next := show(more)
			v.join(" or ", &next)
		}
		return v
	}
	kinds, _ := s["type"].([]string)
	if kind, ok := s["type"].(string); ok {
		kinds = []string{kind}
	}
	if len(kinds) == 0 {
		return shownSchema{Before: "any"}
	}
	v := shownSchema{Before: kinds[0]}
	if items, ok := s["items"].(schema); ok {
		inner := show(items)
		v = shownSchema{"array of " + inner.Before, inner.Link, inner.After}
	} else if values, ok := s["additionalProperties"].(schema); ok && len(values) > 0 {
		inner := show(values)
		v = shownSchema{"object of " + inner.Before, inner.Link, inner.After}
	}
	if values, ok := s["enum"].([]string); ok {
		v.After += ": " + strings.Join(values, ", ")
	}
	if low, ok := s["minimum"]; ok {
		v.After += fmt.Sprintf(", %d to %d", low, s["maximum"])
	}
	if len(kinds) > 1 {
		v.After += " or null"
	}
	return v
}
