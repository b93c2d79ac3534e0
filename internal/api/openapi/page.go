package openapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var style string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// shownPage is what the page shows of a document.
type shownPage struct {
	Style          template.CSS
	Title, Version string
	About          string
	Keys           bool
	Groups         []shownGroup
	Types          []shownType
}

type shownGroup struct {
	Name, Anchor string
	Routes       []shownRoute
}

type shownRoute struct {
	Anchor, Method, Path, Summary string
	Key, Events                   bool
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

type shownType struct {
	Name   string
	Fields []shownField
}

// shownSchema is a schema in a line: words, with a link to the type in between, if it is of one.
type shownSchema struct{ Before, Link, After string }

// page renders the document.
func (d *Document) page() ([]byte, error) {
	v := shownPage{Style: template.CSS(style), Title: d.Info.Title, Version: d.Info.Version,
		About: d.Info.Description, Keys: d.Components.Security != nil}
	for _, t := range d.Tags {
		v.Groups = append(v.Groups, shownGroup{Name: t.Name,
			Anchor: "group-" + strings.ReplaceAll(t.Name, " ", "-")})
	}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			one := d.Paths[path][method]
			i := slices.Index(d.Tags, tag{one.Tags[0]})
			r, err := showRoute(method, path, one)
			if err != nil {
				return nil, err
			}
			v.Groups[i].Routes = append(v.Groups[i].Routes, r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		v.Types = append(v.Types, shownType{name, showFields(d.Components.Schemas[name])})
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
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
