package openai

import (
	"net/http"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// route is what the paths of one pattern answer.
type route struct {
	pattern string
	// segments are those of a pattern with parameters, nil for one without.
	segments []string
	methods  map[string]handler
	// public routes need no API key.
	public bool
	// begin sets headers of every answer; nil for none.
	begin func(http.ResponseWriter)
	// fail answers with an error; nil for OpenAI's shape.
	fail func(http.ResponseWriter, *wire.Error)
}

// errors answers with an error in the shape of the route, which may be nil.
func (r *route) errors() func(http.ResponseWriter, *wire.Error) {
	if r == nil || r.fail == nil {
		return writeError
	}
	return r.fail
}

// newRoute makes a route without methods. A segment {name} of its pattern stands for any one
// segment that is not empty, {name...} at its end for the rest of the path, which is not empty. The
// handler finds them by the request's PathValue.
func newRoute(pattern string, public bool) *route {
	r := &route{pattern: pattern, methods: map[string]handler{}, public: public}
	if strings.Contains(pattern, "{") {
		r.segments = strings.Split(pattern, "/")
	}
	return r
}

// match reports whether a path is one of the pattern's, and calls value with each parameter.
func (r *route) match(path string, value func(name, text string)) bool {
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
func (r *route) allowed() string {
	var list []string
	for _, m := range []string{"GET", "HEAD", "POST", "DELETE"} {
		if r.methods[m] != nil {
			list = append(list, m)
		}
	}
	return strings.Join(list, ", ")
}

// Route describes one route, for tests that walk them and for documentation.
type Route struct {
	// Path has parameters in braces: {id} is one segment, {model...} the rest of the path.
	Method, Path string
	// Public routes need no API key.
	Public bool
}

// Routes lists every route.
func (s *Server) Routes() []Route {
	var list []Route
	for path, r := range s.routes {
		for method := range r.methods {
			list = append(list, Route{Method: method, Path: path, Public: r.public})
		}
	}
	return list
}

// find returns the route of a request, nil for none, and gives the request its parameters. Paths are
// matched whole: no redirects, no cleaning. A pattern without parameters goes before one with them;
// patterns with parameters do not overlap.
func (s *Server) find(r *http.Request) *route {
	path := r.URL.Path
	if root := s.opt.Config.Server.RootPath; root != "" {
		if rest, ok := strings.CutPrefix(path, root); ok && strings.HasPrefix(rest, "/") {
			path = rest
		}
	}
	if found := s.routes[path]; found != nil && found.segments == nil {
		return found
	}
	for _, found := range s.routes {
		if found.segments != nil && found.match(path, nil) {
			found.match(path, r.SetPathValue)
			return found
		}
	}
	return nil
}
