package schema

import (
	"encoding/binary"
	"fmt"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"strconv"
	"strings"
)

// draft is a version of JSON Schema; 0 is one that the schema does not name, and has all keywords.
type draft int

const (
	d4    draft = 4
	d6    draft = 6
	d7    draft = 7
	d2019 draft = 2019
	d2020 draft = 2020
)

// has says whether a keyword that came with a version is one.
func (d draft) has(since draft) bool { return d == 0 || d >= since }

// refAlone says that $ref makes the keywords beside it count for nothing.
func (d draft) refAlone() bool { return d != 0 && d <= d7 }

// draftOf reads a $schema.
func draftOf(uri string) draft {
	for _, x := range []struct {
		part string
		d    draft
	}{{"2020-12", d2020}, {"2019-09", d2019}, {"draft-07", d7}, {"draft-06", d6},
		{"draft-04", d4}, {"draft-03", d4}} {
		if strings.Contains(uri, "json-schema.org/") && strings.Contains(uri, x.part) {
			return x.d
		}
	}
	return 0
}

// resource is a schema with an identifier of its own.
type resource struct {
	root    *value
	uri     string
	draft   draft
	anchors map[string]*value
	dynamic map[string]*value
}

// documents are the schema's text and the resources in it.
type documents struct {
	root      *value
	resources map[*value]*resource
	byURI     map[string]*resource
	numbers   map[*value]int
	texts     map[string]int // numbers by kind, text and numbers of what is inside
	// dynamic are the schemas with each dynamic anchor; "" stands for $recursiveAnchor.
	dynamic map[string][]*value
}

func newDocuments(root *value) *documents {
	d := &documents{root: root, resources: map[*value]*resource{}, byURI: map[string]*resource{},
		numbers: map[*value]int{}, texts: map[string]int{}, dynamic: map[string][]*value{}}
	var version draft
	if s := root.get("$schema"); s != nil && s.kind == kString {
		version = draftOf(s.text)
	}
	d.add(root, "", version)
	d.scan(root, d.resources[root])
	return d
}

// number identifies a value: equal texts in one resource have the same.
func (d *documents) number(v *value) int {
	if n, ok := d.numbers[v]; ok {
		return n
	}
	key := binary.AppendUvarint([]byte{byte(v.kind)}, uint64(len(v.text)))
	key = append(key, v.text...)
	for i, x := range v.list {
		if v.kind == kObject {
			key = binary.AppendUvarint(key, uint64(len(v.names[i])))
			key = append(key, v.names[i]...)
		}
		key = binary.AppendUvarint(key, uint64(d.number(x)))
	}
	if len(d.byURI) > 1 { // references in it are relative to where it stands
		key = fmt.Appendf(key, "%p", d.resource(v))
	}
	n, ok := d.texts[string(key)]
	if !ok {
		n = len(d.texts)
		d.texts[string(key)] = n
	}
	d.numbers[v] = n
	return n
}

func (d *documents) add(v *value, uri string, version draft) *resource {
	r := &resource{root: v, uri: uri, draft: version, anchors: map[string]*value{},
		dynamic: map[string]*value{}}
	d.resources[v] = r
	if _, twice := d.byURI[uri]; !twice {
		d.byURI[uri] = r
	}
	return r
}

// holders are the keywords that hold schemas: by themselves or in a list, or by name.
var holders = map[string]bool{"additionalItems": false, "additionalProperties": false,
	"allOf": false, "anyOf": false, "contains": false, "contentSchema": false, "else": false,
	"if": false, "items": false, "not": false, "oneOf": false, "prefixItems": false,
	"propertyNames": false, "then": false, "unevaluatedItems": false,
	"unevaluatedProperties": false, "$defs": true, "definitions": true, "dependencies": true,
	"dependentSchemas": true, "patternProperties": true, "properties": true}

// scan finds identifiers and anchors. Its depth is that of the JSON.
func (d *documents) scan(v *value, in *resource) {
	if v.kind == kObject {
		in = d.identify(v, in)
		for _, name := range []string{"$anchor", "$dynamicAnchor"} {
			if a := v.get(name); a != nil && a.kind == kString {
				in.anchors[a.text] = v
				if name == "$dynamicAnchor" {
					in.dynamic[a.text] = v
					d.dynamic[a.text] = append(d.dynamic[a.text], v)
				}
			}
		}
		if v.get("$recursiveAnchor").isTrue() {
			d.dynamic[""] = append(d.dynamic[""], v)
		}
	}
	for i, x := range v.list {
		switch {
		case v.kind == kArray:
			d.scan(x, in)
		case x.kind < kArray:
		default:
			byName, holds := holders[v.names[i]]
			if holds && !byName {
				d.scan(x, in)
			}
			for _, y := range x.list {
				if byName && y.kind == kObject {
					d.scan(y, in)
				}
			}
		}
	}
}

// identify is the resource that an object belongs to: its own if it has an identifier.
func (d *documents) identify(v *value, in *resource) *resource {
	k := v.get("$id")
	if k == nil && in.draft <= d4 {
		k = v.get("id")
	}
	if k == nil || k.kind != kString || in.draft.refAlone() && v.get("$ref") != nil {
		return in
	}
	uri, fragment, _ := strings.Cut(k.text, "#")
	if fragment != "" && uri == "" { // an anchor, before draft 2019-09
		in.anchors[fragment] = v
		return in
	}
	uri = resolveURI(in.uri, uri)
	if v == d.root {
		in.uri = uri
		d.byURI[uri] = in
		return in
	}
	version := in.draft
	if s := v.get("$schema"); s != nil && s.kind == kString {
		version = draftOf(s.text)
	}
	return d.add(v, uri, version)
}

// resource is the one that a value is in.
func (d *documents) resource(v *value) *resource {
	for ; v != nil; v = v.parent {
		if r := d.resources[v]; r != nil {
			return r
		}
	}
	return d.resources[d.root]
}

func (d *documents) draft(v *value) draft { return d.resource(v).draft }

// find is what a reference at v points to, nil if that is not in the text; remote says that it is
// in another document.
func (d *documents) find(v *value, ref string) (to *value, remote bool) {
	in := d.resource(v)
	uri, fragment, _ := strings.Cut(ref, "#")
	if uri != "" {
		in = d.byURI[resolveURI(in.uri, uri)]
		if in == nil {
			return nil, true
		}
	}
	fragment, ok := unescape(fragment)
	if !ok {
		return nil, false
	}
	if fragment != "" && fragment[0] != '/' {
		return in.anchors[fragment], false
	}
	if to := locate(in.root, fragment); to != nil {
		return to, false
	}
	if uri == "" { // identifiers of inner schemas are often not meant as such
		return locate(d.root, fragment), false
	}
	return nil, false
}

// locate follows a JSON pointer.
func locate(v *value, pointer string) *value {
	for pointer != "" {
		token := pointer[1:]
		pointer = ""
		if i := strings.IndexByte(token, '/'); i >= 0 {
			token, pointer = token[:i], token[i:]
		}
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v.kind {
		case kObject:
			v = v.get(token)
		case kArray:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v.list) {
				return nil
			}
			v = v.list[i]
		default:
			return nil
		}
		if v == nil {
			return nil
		}
	}
	return v
}

// unescape decodes %XX.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(n))
		i += 2
	}
	return b.String(), true
}

// resolveURI is a reference without fragment, seen from a base (RFC 3986, section 5.2).
func resolveURI(base, ref string) string {
	if ref == "" {
		return base
	}
	if schemeLen(ref) > 0 {
		return ref
	}
	n := schemeLen(base)
	scheme, rest := base[:n], base[n:]
	if strings.HasPrefix(ref, "//") {
		return scheme + ref
	}
	authority, path := "", rest
	if strings.HasPrefix(rest, "//") {
		authority, path = rest, ""
		if i := strings.IndexByte(rest[2:], '/'); i >= 0 {
			authority, path = rest[:i+2], rest[i+2:]
		}
	}
	path, _, _ = strings.Cut(path, "?")
	if ref[0] != '/' {
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			ref = path[:i+1] + ref
		} else if authority != "" {
			ref = "/" + ref
		}
	}
	return scheme + authority + withoutDots(ref)
}

// schemeLen is the length of a URI's scheme with its colon, 0 for a relative reference.
func schemeLen(s string) int {
	for i := range len(s) {
		switch c := s[i]; {
		case c == ':' && i > 0:
			return i + 1
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return 0
		}
	}
	return 0
}

func withoutDots(path string) string {
	if !strings.Contains(path, "./") && !strings.HasSuffix(path, "/.") &&
		!strings.HasSuffix(path, "/..") {
		return path
	}
	var out []string
	parts := strings.Split(path, "/")
	for i, p := range parts {
		switch p {
		case ".":
		case "..":
			if len(out) > 1 {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, p)
			continue
		}
		if i == len(parts)-1 {
			out = append(out, "")
		}
	}
	return strings.Join(out, "/")
}

// follow is the sets of what a $ref points to.
func (c *compiler) follow(ref *value, track bool) *sets {
	if ref.kind != kString {
		c.refuse(cfg.SchemaInvalid, ref, "$ref", "must be a string")
		return nil
	}
	to, remote := c.docs.find(ref, ref.text)
	switch {
	case remote:
		c.refuse(cfg.RemoteRef, ref, "$ref", "%q is another document, and none is ever fetched",
			clip(ref.text))
		return nil
	case to == nil:
		c.refuse(cfg.SchemaInvalid, ref, "$ref", "%q points to nothing", clip(ref.text))
		return nil
	}
	return c.resolve(c.schemaOf(to, track))
}

// followDynamic is the sets of what a $dynamicRef or $recursiveRef points to, where the way by
// which it is reached makes no difference.
func (c *compiler) followDynamic(ref *value, track bool) *sets {
	if ref.kind != kString {
		c.refuse(cfg.SchemaInvalid, ref, ref.token, "must be a string")
		return nil
	}
	to, remote := c.docs.find(ref, ref.text)
	if remote || to == nil {
		return c.follow(ref, track)
	}
	var targets []*value
	if ref.token == "$recursiveRef" {
		if to.get("$recursiveAnchor").isTrue() {
			targets = c.docs.dynamic[""]
		}
	} else if _, fragment, _ := strings.Cut(ref.text, "#"); fragment != "" &&
		c.docs.resource(to).dynamic[fragment] == to {
		targets = c.docs.dynamic[fragment]
	}
	for _, t := range targets {
		if t != to {
			c.refuse(cfg.SchemaUnsupported, ref, ref.token,
				"more than one schema may be meant by %q", clip(ref.text))
			return nil
		}
	}
	return c.resolve(c.schemaOf(to, track))
}
