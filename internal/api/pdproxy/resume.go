package pdproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// resumeHeader is server.ResumeHeader: an answer that was broken off goes on at another server.
const resumeHeader = "X-Eagleray-Resume"

const (
	// ends is how many servers may end with a request: it may be what they end of.
	ends = 3
	// patience is how long an answer that was broken off waits for a server that goes on with it.
	patience = time.Minute
)

// progress is what a client has of an answer; nil is that of an answer that is not gone on with.
type progress struct {
	begun bool
	token string
	bytes int64
	sum   uint32
	// ended counts servers that have, since one was asked.
	ended int
	// until is when the wait ends for a server that goes on; zero while one answers.
	until time.Time
}

// ask sets the header of a request for what the client does not have.
func (g *progress) ask(h http.Header) {
	h.Del(resumeHeader)
	switch {
	case g == nil:
	case g.token == "":
		h.Set(resumeHeader, "begin")
	default:
		h.Set(resumeHeader, fmt.Sprintf("%s;%d;%08x", g.token, g.bytes, g.sum))
	}
}

// outlives notes that a server has not answered, and says whether another one may be asked.
func (g *progress) outlives(err error) bool {
	var at *net.OpError
	if g == nil || errors.As(err, &at) && at.Op == "dial" {
		return true // it does not know of the request
	}
	g.ended++
	return g.ended < ends
}

// waits says whether the rest of the answer may still come from another server.
func (g *progress) waits() bool {
	if g.until.IsZero() {
		g.until = time.Now().Add(patience)
	}
	return g.token != "" && g.ended < ends && time.Now().Before(g.until)
}

var (
	errGone = errors.New("the client has gone")
	errCut  = errors.New("the server that was answering has ended")
)

// refusal is how a server answers that does not go on with an answer.
type refusal struct {
	status int
	body   []byte
}

func (e *refusal) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// pass hands a request to a decode server, and its answer to the client as it comes. When the
// server ends before the answer does another one goes on with it; whole is the request as it was,
// first what the first one is asked. It says whether that one's answer was one, to its end.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, first, whole []byte,
	times *Times) bool {
	var has progress
	status := 0
	for body, asks := first, 1; ; body, asks = whole, asks+1 {
		answer, s, err := p.send(r, p.decode, body, &has)
		if err == nil {
			if !has.begun {
				times.Decode, times.Begun, status = s.url, time.Now(), answer.StatusCode
			}
			err = has.forward(w, answer)
			answer.Body.Close()
		}
		if r.Context().Err() != nil || errors.Is(err, errGone) {
			return false // its request ended with the body
		}
		if errors.Is(err, errCut) {
			p.mark(p.decode, s, err)
			has.ended++
		}
		switch {
		case err == nil:
			if p.opt.OnSplit != nil && !times.Computed.IsZero() {
				times.Over = time.Now()
				p.opt.OnSplit(*times)
			}
			return asks == 1 && status == http.StatusOK
		case !has.begun:
			fail(w, r, unavailable(err))
			return false
		case !has.mayGoOn(err):
			breakOff(w, r, err)
			return false
		}
		p.opt.Log.Info("an answer goes on at another decode server",
			"bytes", has.bytes, "cause", err)
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return false
		}
	}
}

// pause is between two looks for a server that goes on with an answer.
const pause = 100 * time.Millisecond

// mayGoOn says whether an answer that has begun may go on after an error.
func (g *progress) mayGoOn(err error) bool {
	var no *refusal
	full := errors.As(err, &no) &&
		(no.status == http.StatusServiceUnavailable || no.status == overloaded)
	return (no == nil || full) && g.waits()
}

// forward gives the client what it does not have of an answer. It fails with errGone, errCut or a
// *refusal.
func (g *progress) forward(w http.ResponseWriter, answer *http.Response) error {
	if g.begun && answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
		return &refusal{answer.StatusCode, text}
	}
	flush := http.NewResponseController(w)
	if !g.begun {
		g.begun, g.token = true, answer.Header.Get(resumeHeader)
		copyHeader(w.Header(), answer.Header)
		w.Header().Del(resumeHeader)
		w.WriteHeader(answer.StatusCode)
		_ = flush.Flush()
	}
	g.until = time.Time{}
	buf := make([]byte, 32<<10)
	for {
		n, err := answer.Body.Read(buf)
		if n > 0 {
			g.bytes += int64(n)
			g.sum = crc32.Update(g.sum, crc32.IEEETable, buf[:n])
			if _, err := w.Write(buf[:n]); err != nil {
				return errGone
			}
			_ = flush.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
	}
}

// maxRefusal bounds what is read of an answer that is none.
const maxRefusal = 64 << 10

// breakOff tells the client that there is no more of an answer that has begun: the reader of a
// stream of events by another one, others by a break.
func breakOff(w http.ResponseWriter, r *http.Request, err error) {
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		panic(http.ErrAbortHandler)
	}
	var no *refusal
	shape := shapeOf(r)
	_, text := shape.Error(w.Header(), unavailable(err))
	if errors.As(err, &no) && json.Valid(no.body) {
		text = no.body
	}
	_, _ = w.Write(shape.AppendEvent([]byte("\n\n"), bytes.TrimSpace(text)))
}

// unavailable is the error of a request that no server answers.
func unavailable(err error) *wire.Error {
	return &wire.Error{Status: http.StatusServiceUnavailable, Message: err.Error(), RetryAfter: 1}
}
