package server

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// resource is what the paths of one pattern answer, by method.
type resource struct {
	pattern string
	// segments are those of a pattern with parameters, nil for one without.
	segments []string
	methods  map[ask]Handler
	docs     map[ask]Doc
	// public resources need no API key.
	public bool
}

// ask is what a handler answers: a method, of clients of one shape, nil for all.
type ask struct {
	method string
	shape  *Shape
}

// handler answers a method to a client, nil where none does.
func (r *resource) handler(method string, shape *Shape) Handler {
	if h := r.methods[ask{method, shape}]; h != nil {
		return h
	}
	return r.methods[ask{method, nil}]
}

// newResource makes one without methods. A segment {name} of its pattern stands for any one
// segment that is not empty, {name...} at its end for the rest of the path, which is not empty. The
// handler finds them by the request's PathValue.
func newResource(pattern string, public bool) *resource {
	r := &resource{pattern: pattern, methods: map[ask]Handler{}, docs: map[ask]Doc{},
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

// allowed lists the methods of a client, for 405.
func (r *resource) allowed(shape *Shape) string {
	var list []string
	for _, m := range []string{"GET", "HEAD", "POST", "DELETE"} {
		if r.handler(m, shape) != nil {
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
	// Shape is of the clients that are answered, nil for all that have no route of their own.
	Shape *Shape
	Doc   Doc
}

// Add adds routes. A GET answers HEAD as well.
func (s *Server) Add(routes ...Route) {
	for _, one := range routes {
		r := s.resources[one.Path]
		if r == nil {
			r = newResource(one.Path, one.Public)
			s.resources[one.Path] = r
		}
		of := ask{one.Method, one.Shape}
		r.methods[of], r.docs[of] = one.Handler, one.Doc
		if one.Method == http.MethodGet {
			r.methods[ask{http.MethodHead, one.Shape}] = one.Handler
		}
		if m := s.opt.Metrics; m != nil {
			m.Expect(r.pattern, one.Method)
		}
	}
}

// Routes lists every route, for tests that walk them and for documentation.
func (s *Server) Routes() []Route {
	var list []Route
	for path, r := range s.resources {
		for of, h := range r.methods {
			list = append(list, Route{Method: of.method, Path: path, Public: r.public, Handler: h,
				Shape: of.shape, Doc: r.docs[of]})
		}
	}
	return list
}

// NoRoute is the answer to a path that nothing answers.
func (s *Server) NoRoute(r *http.Request) *wire.Error {
	e := &wire.Error{Status: http.StatusNotFound, Message: "no such route: " +
		wire.Clip(r.URL.Path)}
	if s.opt.Absent != nil {
		e.Message = cmp.Or(s.opt.Absent(s.path(r)), e.Message)
	}
	return e
}

// path is that of a request without the prefix of a proxy.
func (s *Server) path(r *http.Request) string {
	path := r.URL.Path
	if root := s.opt.Config.RootPath; root != "" {
		if rest, ok := strings.CutPrefix(path, root); ok && strings.HasPrefix(rest, "/") {
			return rest
		}
	}
	return path
}

// find returns the resource of a request, nil for none, and gives the request its parameters. Paths
// are matched whole: no redirects, no cleaning. A pattern without parameters goes before one with
// them, and so does what the server says that it does not have; patterns with parameters do not
// overlap.
func (s *Server) find(r *http.Request) *resource {
	path := s.path(r)
	if found := s.resources[path]; found != nil && found.segments == nil {
		return found
	}
	if s.opt.Absent != nil && s.opt.Absent(path) != "" {
		return nil
	}
	for _, found := range s.resources {
		if found.segments != nil && found.match(path, nil) {
			found.match(path, r.SetPathValue)
			return found
		}
	}
	return nil
}
