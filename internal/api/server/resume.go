package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// ResumeHeader lets an answer that was broken off go on at another server. A proxy gives each
// request the value "begin". The head of the answer then has a token, which names what the answer
// is made of beside the request: the seed of all that is drawn, its time, and whose weights. When
// the connection breaks the proxy asks another server the same with "token;bytes;sum": how much of
// the body its client has, and the IEEE CRC-32 of it, in hexadecimal. What follows of the body
// comes as the answer.
//
// The other server computes the whole answer again and leaves out what the client has, once it has
// found that to be the same; else, and where its weights are others, it answers 409. Such answers
// are made of one token at a time, and the choices take turns, so that their bytes do not depend on
// who was faster.
//
// A request with the header that an engine fails, or that the end of a server cuts off, is not
// answered with an error: the connection breaks.
const ResumeHeader = "X-Eagleray-Resume"

// resumption is a request that another server may go on with, or has begun.
type resumption struct {
	// seed, created and weights name what the answer is made of beside the request.
	seed    [32]byte
	created int64
	weights uint32

	// has is how much of the body the client has, sum its checksum.
	has int64
	sum uint32
	// again says that another server has begun.
	again bool
	// kept says that the answer is part of what this server keeps: no other one has it.
	kept bool
	bad  *wire.Error
}

// resumable gives a request with a ResumeHeader its origin.
func (s *Server) resumable(r *Request) {
	value := r.Header.Get(ResumeHeader)
	if value == "" || r.Method != http.MethodPost {
		return
	}
	o := &resumption{created: time.Now().Unix(), weights: s.opt.Weights()}
	if value == "begin" {
		_, _ = rand.Read(o.seed[:]) // never fails
		if s.opt.Seed != nil {
			binary.BigEndian.PutUint64(o.seed[:], s.opt.Seed())
			clear(o.seed[8:])
		}
	} else if err := o.read(value); err != nil {
		o.bad = wire.BadRequest(ResumeHeader, "%s: %s", ResumeHeader, err)
	} else if o.weights != s.opt.Weights() {
		o.bad = changed("the weights of the server that began it are not this one's")
	}
	r.resume, r.Origin = o, call.NewOrigin(o.seed, o.created)
	r.LeaveToOthers = func(ctx context.Context, err error) { o.leave(ctx, s.log, err) }
}

// token is what the head of an answer has.
func (o *resumption) token() string {
	b := append([]byte(nil), o.seed[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(o.created))
	return hex.EncodeToString(binary.BigEndian.AppendUint32(b, o.weights))
}

// read takes a header's value apart.
func (o *resumption) read(value string) error {
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

// changed is the answer to who asks for the rest of an answer that would be another one here.
func changed(why string) *wire.Error {
	return &wire.Error{Status: http.StatusConflict, Expected: true,
		Message: "the answer cannot go on at another server: " + why}
}

// Pin has an answer be part of what this server keeps: no other one can go on with it.
func (r *Request) Pin() *wire.Error {
	switch o := r.resume; {
	case o == nil:
		return nil
	case o.again:
		return changed("the other server keeps it")
	default:
		o.kept = true
	}
	return nil
}

// leave breaks the connection of a request that another server can answer and this one cannot.
func (o *resumption) leave(ctx context.Context, log *slog.Logger, reason error) {
	if o.kept || call.Ended(ctx) != nil {
		return
	}
	log.Warn("request is left to another server", "error", reason)
	panic(http.ErrAbortHandler)
}

// resumed has a request with an origin answered.
func (o *resumption) resumed(h Handler, w http.ResponseWriter, r *Request) error {
	if o.bad != nil {
		return o.bad
	}
	x := &resumer{ResponseWriter: w, of: o, left: o.has}
	if err := h(x, r); err != nil {
		return err
	}
	if x.left > 0 && x.status == http.StatusOK {
		return changed("it would be shorter")
	}
	return nil
}

// resumer writes an answer but for what the client has of it. Its head waits until that is found to
// be the same.
type resumer struct {
	http.ResponseWriter
	of     *resumption
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
	if !w.of.kept {
		h.Set(ResumeHeader, w.of.token())
	}
	if w.of.again {
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
	if w.sum != w.of.sum {
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
