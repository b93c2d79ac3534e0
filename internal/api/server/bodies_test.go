package server

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// TestBodyBudget: bodies wait for room and are refused in time, large ones never take the last
// quarter, and one alone has room whatever its size.
func TestBodyBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mb = 1 << 20
		b := newBodyBudget(16*mb, 5*time.Second)
		take := func(held, n int64) error { return b.reserve(t.Context(), held, n) }
		for i := range 3 {
			if err := take(0, 4*mb); err != nil {
				t.Fatalf("large body %d: %v", i, err)
			}
		}
		began := time.Now()
		if err := take(0, 4*mb); !errors.Is(err, errBodies) || time.Since(began) != 5*time.Second {
			t.Errorf("a fourth large body got %v after %v", err, time.Since(began))
		}
		for i := range 4 {
			if err := take(0, mb); err != nil {
				t.Errorf("small body %d beside the large ones: %v", i, err)
			}
		}
		time.AfterFunc(time.Second, func() { b.release(mb) })
		began = time.Now()
		if err := take(0, mb); err != nil || time.Since(began) != time.Second {
			t.Errorf("a body that waited for room got %v after %v", err, time.Since(began))
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.reserve(gone, 0, mb); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that went away got %v", err)
		}
		b.release(16 * mb)
		if err := take(0, 64*mb); err != nil {
			t.Errorf("alone: %v", err)
		}
		if err := take(64*mb, 64*mb); err != nil {
			t.Errorf("alone, growing: %v", err)
		}
		b.release(128 * mb)
		if b.used != 0 {
			t.Errorf("%d bytes are left in use", b.used)
		}
	})
}

// packed is a text in a coding.
func packed(t *testing.T, text string, with func(io.Writer) io.WriteCloser) string {
	t.Helper()
	var b bytes.Buffer
	w := with(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

// TestCompressedBodies: bodies are expanded within the limit of plain ones, and what is wrong with
// one is named. None leaves bytes in use.
func TestCompressedBodies(t *testing.T) {
	const limit = 200_000
	s := newServer(t, func(o *Options) { o.Config.MaxRequestBodyBytes = limit })
	var got string
	s.Add(Route{Method: "POST", Path: "/echo", Handler: Post(s.Server,
		func(f *wire.Fields) (string, *wire.Error) { return f.Text("text"), f.Err },
		func(_ http.ResponseWriter, _ *Request, _ *wire.Fields, text string) error {
			got = text
			return nil
		})})
	body := func(n int) string { return `{"text":"` + strings.Repeat("x", n-11) + `"}` }
	small, most := body(100), body(limit)
	zlibbed := func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }
	deflated := func(w io.Writer) io.WriteCloser {
		f, err := flate.NewWriter(w, 9)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	whole := packed(t, small, gzipped)
	for name, c := range map[string]struct {
		coding, body string
		status       int
		want         string // of the text's length, or of the error
	}{
		"plain":    {"", small, 200, small},
		"identity": {"Identity", small, 200, small},
		"gzip":     {"gzip", whole, 200, small},
		"GZIP":     {"GZIP", whole, 200, small},
		"x-gzip":   {"x-gzip", whole, 200, small},
		"members": {"gzip", packed(t, small[:50], gzipped) + packed(t, small[50:], gzipped),
			200, small},
		"zlib":            {"deflate", packed(t, small, zlibbed), 200, small},
		"bare deflate":    {"deflate", packed(t, small, deflated), 200, small},
		"as long as may":  {"gzip", packed(t, most, gzipped), 200, most},
		"longer":          {"gzip", packed(t, body(limit+1), gzipped), 413, "larger than 200000"},
		"a bomb":          {"gzip", packed(t, body(4<<20), gzipped), 413, "larger than 200000"},
		"a deflated bomb": {"deflate", packed(t, body(4<<20), zlibbed), 413, "larger than"},
		"long and packed": {"gzip", strings.Repeat(packed(t, "", gzipped), limit), 413, "larger"},
		"not gzip":        {"gzip", small, 400, "not in the coding gzip"},
		"cut":             {"gzip", whole[:len(whole)-9], 400, "not in the coding gzip"},
		"cut within head": {"gzip", whole[:5], 400, "not in the coding gzip"},
		"empty":           {"gzip", "", 400, "not in the coding gzip"},
		"empty deflate":   {"deflate", "", 400, "not in the coding deflate"},
		"more behind":     {"gzip", whole + "x", 400, "not in the coding gzip"},
		"damaged": {"gzip", whole[:len(whole)-6] + "xx" + whole[len(whole)-4:], 400,
			"checksum"},
		"br":               {"br", small, 415, "Content-Encoding br is not supported"},
		"two":              {"gzip, gzip", whole, 415, "gzip, gzip is not"},
		"JSON that is not": {"gzip", packed(t, "{", gzipped), 400, ""},
	} {
		for _, chunked := range []bool{false, true} {
			r := newRequest("POST", "/echo", c.body)
			if r.Header.Set("Content-Type", "application/json"); c.coding != "" {
				r.Header.Set("Content-Encoding", c.coding)
			}
			if chunked {
				r.ContentLength = -1
			}
			got = ""
			rec := httptest.NewRecorder()
			s.Handler().ServeHTTP(rec, r)
			if rec.Code != c.status {
				t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
				continue
			}
			if c.status == 200 && `{"text":"`+got+`"}` != c.want {
				t.Errorf("%s: %d bytes arrive", name, len(got))
			}
			if c.status != 200 && !strings.Contains(rec.Body.String(), c.want) {
				t.Errorf("%s: %s", name, rec.Body)
			}
			accepts := rec.Header().Get("Accept-Encoding")
			if (accepts != "") != (c.status == 415) {
				t.Errorf("%s: Accept-Encoding %q", name, accepts)
			}
			if n := s.BodyBytes(); n != 0 {
				t.Errorf("%s: %d bytes are left in use", name, n)
			}
		}
	}
	// A client that goes away is no client that compresses badly.
	r := newRequest("POST", "/echo", "")
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(whole[:20]),
		broken{io.ErrUnexpectedEOF})), 100
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Encoding", "gzip")
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	if rec.Code != 503 {
		t.Errorf("a client that has gone: %d %s", rec.Code, rec.Body)
	}
}

// broken is a body that fails.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
