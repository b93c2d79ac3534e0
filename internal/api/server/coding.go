package server

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// Expand is the body of a request as its client means it: what is compressed (Content-Encoding gzip
// or deflate) is expanded. No more than limit bytes come, compressed or not, then a
// *http.MaxBytesError. Another coding is an error that names it.
func Expand(w http.ResponseWriter, r *http.Request, limit int64) (io.Reader, error) {
	in := http.MaxBytesReader(w, r.Body, limit)
	x := &expander{in: in, coding: codingOf(r)}
	switch x.coding {
	case "":
		return in, nil
	case "gzip", "x-gzip":
		x.open = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		x.open = inflate
	default:
		w.Header().Set("Accept-Encoding", "gzip, deflate")
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType,
			Message: "Content-Encoding " + wire.Clip(x.coding) +
				" is not supported: a body may be compressed with gzip or deflate"}
	}
	return http.MaxBytesReader(w, io.NopCloser(x), limit), nil
}

// codingOf is what a body is compressed with, "" for nothing.
func codingOf(r *http.Request) string {
	name := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ", "))
	if name == "identity" {
		return ""
	}
	return name
}

// inflate reads what HTTP calls deflate: zlib's format, and flate's bare one, which some clients
// send for it.
func inflate(in io.Reader) (io.Reader, error) {
	b := bufio.NewReader(in)
	head, err := b.Peek(2)
	if err != nil {
		return nil, err
	}
	// RFC 1950, 2.2: the method is 8, and the sum of both bytes a multiple of 31.
	if head[0]&15 == 8 && (int(head[0])<<8+int(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// expander is a body without its coding. What goes wrong with the body beneath is its error, and
// what is wrong with the coding one of the client's.
type expander struct {
	in     io.Reader
	coding string
	open   func(io.Reader) (io.Reader, error)
	out    io.Reader
	// broken is the error of the body beneath, nil for its end.
	broken error
}

// Read implements io.Reader.
func (x *expander) Read(b []byte) (n int, err error) {
	if x.out == nil {
		out, err := x.open(beneath{x})
		if err != nil {
			return 0, x.failure(err)
		}
		x.out = out
	}
	if n, err = x.out.Read(b); err == nil || err == io.EOF {
		return n, err
	}
	return n, x.failure(err)
}

// failure is an error of the coding, unless the body beneath is the reason.
func (x *expander) failure(err error) error {
	if x.broken != nil {
		return x.broken
	}
	return wire.BadRequest("", "request body is not in the coding %s: %v", x.coding, err)
}

// beneath is the body that an expander reads.
type beneath struct{ *expander }

// Read implements io.Reader.
func (x beneath) Read(b []byte) (int, error) {
	n, err := x.in.Read(b)
	if err != nil && err != io.EOF {
		x.broken = err
	}
	return n, err
}
