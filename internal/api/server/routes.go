package server

import (
	"net/http"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// resource is what the paths of one pattern answer, by method.
type resource struct {
	pattern string
	// segments are those of a pattern with parameters, nil for one without.
	segments []string
	methods  map[string]Handler
	docs     map[string]Doc
	// public resources need no API key.
	public bool
	// shape is zero for OpenAI's.
	shape Shape
	// absent is why the path is none of the server's, which a pattern would match; "" for others.
	absent string
}

// errors answers with an error in the shape of the resource, which may be nil.
func (r *resource) errors() func(http.ResponseWriter, *wire.Error) {
	if r == nil || r.shape.Fail == nil {
		return writeError
	}
	return r.shape.Fail
}

// newResource makes one without methods. A segment {name} of its pattern stands for any one
// segment that is not empty, {name...} at its end for the rest of the path, which is not empty. The
// handler finds them by the request's PathValue.
func newResource(pattern string, public bool) *resource {
	r := &resource{pattern: pattern, methods: map[string]Handler{}, docs: map[string]Doc{},
		public: public}
	if strings.Contains(pattern, "{") {
		r.segments = strings.Split(pattern, "/")
	}
	return r
}

// match reports whether a path is one of the pattern's, and calls value with each parameter.
func (r *resource) match(path string, value func(name, text string)) bool {
	for _, s := range r.segments[1:] {
		if !strings.HasPrefix(path, "/") {
			return false
		}
		name, parameter := strings.CutPrefix(strings.TrimSuffix(s, "}"), "{")
		name, rest := strings.CutSuffix(name, "...")
		text, after := path[1:], ""
		if i := strings.IndexByte(text, '/'); i >= 0 && !rest {
			text, after = text[:i], text[i:]
		}
		switch {
		case text == "", !parameter && text != s:
			return false
		case parameter && value != nil:
			value(name, text)
		}
		path = after
	}
	return path == ""
}

// allowed lists the methods, for 405.
func (r *resource) allowed() string {
	var list []string
	for _, m := range []string{"GET", "HEAD", "POST", "DELETE"} {
		if r.methods[m] != nil {
			list = append(list, m)
		}
	}
	return strings.Join(list, ", ")
}

// Route is what one method of one path answers.
type Route struct {
	// Path has parameters in braces: {id} is one segment, {model...} the rest of the path.
	Method, Path string
	// Public routes need no API key.
	Public  bool
	Handler Handler
	// Shape is of answers that have another one than OpenAI's; nil for none.
	Shape *Shape
	Doc   Doc
}

// Shape is what the answers of a path have in common, whatever its handlers do.
type Shape struct {
	// Begin sets headers of every answer.
	Begin func(http.ResponseWriter)
	// Fail answers with an error, whose type is that of Error.
	Fail  func(http.ResponseWriter, *wire.Error)
	Error any
}

// Add adds routes. A GET answers HEAD as well.
func (s *Server) Add(routes ...Route) {
	for _, one := range routes {
		r := s.resources[one.Path]
		if r == nil {
			r = newResource(one.Path, one.Public)
			s.resources[one.Path] = r
		}
		r.methods[one.Method], r.docs[one.Method] = one.Handler, one.Doc
		if one.Method == http.MethodGet {
			r.methods[http.MethodHead] = one.Handler
		}
		if one.Shape != nil {
			r.shape = *one.Shape
		}
		if m := s.opt.Metrics; m != nil {
			for method := range r.methods {
				m.Expect(r.pattern, method)
			}
		}
	}
}

// Absent has a path answered as one that there is not, with a reason. It is for those of an API
// that would match the pattern of another route.
func (s *Server) Absent(path, reason string) {
	r := newResource(path, false)
	r.absent = reason
	s.resources[path] = r
}

// Routes lists every route, for tests that walk them and for documentation.
func (s *Server) Routes() []Route {
	var list []Route
	for path, r := range s.resources {
		for method, h := range r.methods {
			list = append(list, Route{Method: method, Path: path, Public: r.public, Handler: h,
				Shape: &r.shape, Doc: r.docs[method]})
		}
	}
	return list
}

// find returns the resource of a request, nil for none, and gives the request its parameters. Paths
// are matched whole: no redirects, no cleaning. A pattern without parameters goes before one with
// them; patterns with parameters do not overlap.
func (s *Server) find(r *http.Request) *resource {
	path := r.URL.Path
	if root := s.opt.Config.RootPath; root != "" {
		if rest, ok := strings.CutPrefix(path, root); ok && strings.HasPrefix(rest, "/") {
			path = rest
		}
	}
	if found := s.resources[path]; found != nil && found.segments == nil {
		return found
	}
	for _, found := range s.resources {
		if found.segments != nil && found.match(path, nil) {
			found.match(path, r.SetPathValue)
			return found
		}
	}
	return nil
}
