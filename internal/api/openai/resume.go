package openai

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// ResumeHeader lets an answer that was broken off go on at another server. A proxy gives each request
// the value "begin". The head of the answer then has a token, which names what the answer is made of
// beside the request: the seed of all that is drawn, its time, and whose weights. When the connection
// breaks the proxy asks another server the same with "token;bytes;sum": how much of the body its client
// has, and the IEEE CRC-32 of it, in hexadecimal. What follows of the body comes as the answer.
//
// The other server computes the whole answer again and leaves out what the client has, once it has found
// that to be the same; else, and where its weights are others, it answers 409. Such answers are made of one
// token at a time, and the choices take turns, so that their bytes do not depend on who was faster.
//
// A request with the header that an engine fails, or that the end of a server cuts off, is not answered
// with an error: the connection breaks.
const ResumeHeader = "X-Eagleray-Resume"

// origin is what an answer is made of beside the request.
type origin struct {
	seed    [32]byte
	created int64
	weights uint32

	random *mathrand.ChaCha8
	// has is how much of the body the client has, sum its checksum.
	has int64
	sum uint32
	// again says that another server has begun.
	again bool
	// kept says that the answer is part of what this server keeps: no other one has it.
	kept bool
	bad  *wire.Error
}

type originKey struct{}

// originOf returns the origin of a request that can be resumed, nil for one that cannot.
func originOf(ctx context.Context) *origin {
	o, _ := ctx.Value(originKey{}).(*origin)
	return o
}

// withOrigin gives the context of a request with a ResumeHeader its origin.
func (s *Server) withOrigin(r *http.Request) *http.Request {
	value := r.Header.Get(ResumeHeader)
	if value == "" || r.Method != http.MethodPost {
		return r
	}
	o := &origin{created: time.Now().Unix(), weights: s.weights()}
	if value == "begin" {
		_, _ = rand.Read(o.seed[:]) // never fails
		if s.model.flags.Seed != 0 {
			binary.BigEndian.PutUint64(o.seed[:], s.nextSeed())
			clear(o.seed[8:])
		}
	} else if err := o.read(value); err != nil {
		o.bad = wire.BadRequest(ResumeHeader, "%s: %s", ResumeHeader, err)
	} else if o.weights != s.weights() {
		o.bad = changed("the weights of the server that began it are not this one's")
	}
	o.random = mathrand.NewChaCha8(o.seed)
	return r.WithContext(context.WithValue(r.Context(), originKey{}, o))
}

// weights is a sum of what tokens depend on beside the request: servers with different ones have
// different weights, compute with other kernels, or are of another version.
func (s *Server) weights() uint32 {
	isa := ""
	if len(s.model.Ranks) > 0 {
		if isa = s.model.Ranks[0].ISA; isa == "avx512" {
			isa = "avx2" // the same bits
		}
	}
	return crc32.ChecksumIEEE(fmt.Appendf(nil, "%s|%s|%d|%s|%s|%s", s.opt.Version, s.model.DType,
		s.model.VocabSize, isa, s.model.Identity(), s.weightVersion()))
}

// token is what the head of an answer has.
func (o *origin) token() string {
	b := append([]byte(nil), o.seed[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(o.created))
	return hex.EncodeToString(binary.BigEndian.AppendUint32(b, o.weights))
}

// read takes a header's value apart.
func (o *origin) read(value string) error {
	parts := strings.Split(value, ";")
	raw, err := hex.DecodeString(parts[0])
	if err != nil || len(parts) != 3 || len(raw) != len(o.seed)+12 {
		return errors.New(`want "begin", or a token, bytes and their sum`)
	}
	copy(o.seed[:], raw)
	raw = raw[len(o.seed):]
	o.created, o.weights = int64(binary.BigEndian.Uint64(raw)), binary.BigEndian.Uint32(raw[8:])
	if o.has, err = strconv.ParseInt(parts[1], 10, 64); err != nil || o.has < 0 {
		return fmt.Errorf("%q is no number of bytes", wire.Clip(parts[1]))
	}
	sum, err := strconv.ParseUint(parts[2], 16, 32)
	if err != nil {
		return fmt.Errorf("%q is no CRC-32", wire.Clip(parts[2]))
	}
	o.sum, o.again = uint32(sum), true
	return nil
}

// uint64 draws a number: of an answer that can be resumed always the same.
func (o *origin) uint64() uint64 {
	if o == nil {
		return mathrand.Uint64()
	}
	return o.random.Uint64()
}

// time is when the answer was begun.
func (o *origin) time() int64 {
	if o == nil {
		return time.Now().Unix()
	}
	return o.created
}

// changed is the answer to who asks for the rest of an answer that would be another one here.
func changed(why string) *wire.Error {
	return &wire.Error{Status: http.StatusConflict, Expected: true,
		Message: "the answer cannot go on at another server: " + why}
}

// keep has an answer end with the connection, and tells who asks for the rest of it elsewhere.
func (o *origin) keep() *wire.Error {
	switch {
	case o == nil:
		return nil
	case o.again:
		return changed("the other server keeps it")
	}
	o.kept = true
	return nil
}

// breakOff breaks the connection of a request that can be resumed, where another server can answer it
// and this one cannot; whatever was to follow is told to nobody.
func (s *Server) breakOff(ctx context.Context, err error) {
	if o := originOf(ctx); o == nil || o.kept || ended(ctx) != nil ||
		!errors.Is(err, engine.ErrFailed) && !errors.Is(err, engine.ErrStopped) {
		return
	}
	s.log.Warn("request is left to another server", "error", err)
	panic(http.ErrAbortHandler)
}

// resumed has a request with an origin answered.
func (o *origin) resumed(h handler, w http.ResponseWriter, r *http.Request) error {
	if o.bad != nil {
		return o.bad
	}
	x := &resumer{ResponseWriter: w, origin: o, left: o.has}
	if err := h(x, r); err != nil {
		return err
	}
	if x.left > 0 && x.status == http.StatusOK {
		return changed("it would be shorter")
	}
	return nil
}

// resumer writes an answer but for what the client has of it. Its head waits until that is found to be
// the same.
type resumer struct {
	http.ResponseWriter
	origin *origin
	status int
	left   int64 // bytes that the client has, and that have not come
	sum    uint32
}

// WriteHeader implements http.ResponseWriter.
func (w *resumer) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	if status != http.StatusOK {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	h := w.Header()
	if !w.origin.kept {
		h.Set(ResumeHeader, w.origin.token())
	}
	if w.origin.again {
		h.Del("Content-Length")
	}
	if w.left == 0 {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements io.Writer.
func (w *resumer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.left == 0 || w.status != http.StatusOK {
		return w.ResponseWriter.Write(b)
	}
	n := int(min(w.left, int64(len(b))))
	w.sum = crc32.Update(w.sum, crc32.IEEETable, b[:n])
	if w.left > int64(n) {
		w.left -= int64(n)
		return len(b), nil
	}
	if w.sum != w.origin.sum {
		return 0, changed("what is known of it would be different")
	}
	w.left = 0
	w.ResponseWriter.WriteHeader(w.status)
	m, err := w.ResponseWriter.Write(b[n:])
	return n + m, err
}

// FlushError implements what http.ResponseController asks for: a head that waits does not leave.
func (w *resumer) FlushError() error {
	if w.left > 0 && w.status == http.StatusOK {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *resumer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
