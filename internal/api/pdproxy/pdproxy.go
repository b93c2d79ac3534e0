// Package pdproxy is a proxy in front of servers that compute prompts (prefill) and servers that go
// on from them (decode): clients see one server.
//
// A completion is asked of a prefill server first, for one token and for where its KV blocks are
// (kv_transfer_params, see package kvtransfer), then of a decode server with that beside the
// client's own fields, whose answer or stream is passed on as it comes. Whatever goes wrong with
// the first only means that the decode server computes the prompt too. Everything else is passed to
// a decode server.
package pdproxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/call"
	api "github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// Options configure a Proxy.
type Options struct {
	// Prefill and Decode are the addresses of the servers, such as http://10.0.0.1:8000.
	Prefill, Decode []string
	// HealthEvery is how often their /health is asked; 0 is 1 s.
	HealthEvery time.Duration
	// Silence is how long the machine of a server may be silent that has a request: one that
	// vanishes closes no connection. 0 is 10 s.
	Silence time.Duration
	// MaxBody bounds a request's body in bytes; 0 is 32 MiB.
	MaxBody int64
	// Log receives what happens to the servers; nil is silence.
	Log *slog.Logger
	// OnSplit is called when an answer that was split has begun, and again when it is over; nil is
	// not called.
	OnSplit func(Times)
}

// Times are when a split answer came how far.
type Times struct {
	// Prefill and Decode are the servers.
	Prefill, Decode string
	// Asked is when the prompt was asked for, Computed when its blocks were known, Begun when the
	// decode server's answer began, and Over when it had been passed on.
	Asked, Computed, Begun, Over time.Time
}

// Proxy is an http.Handler.
type Proxy struct {
	opt             Options
	prefill, decode *fleet
	client          *http.Client
	// partings are the words to prefill servers whose blocks are not needed.
	partings sync.WaitGroup
}

// headerTimeout bounds the wait for the head of an answer: a long one that is not streamed is
// computed before it begins.
const headerTimeout = time.Hour

// New makes a proxy. Errors name the address that is none.
func New(o Options) (*Proxy, error) {
	o.HealthEvery = cmp.Or(o.HealthEvery, time.Second)
	o.Silence = cmp.Or(o.Silence, 10*time.Second)
	o.MaxBody = cmp.Or(o.MaxBody, 32<<20)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.MaxIdleConnsPerHost, t.ResponseHeaderTimeout = nil, 256, headerTimeout
	t.DialContext = dialer(o.Silence).DialContext
	p := &Proxy{opt: o, client: &http.Client{Transport: t,
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}}}
	var err error
	if p.prefill, err = newFleet("prefill", o.Prefill); err != nil {
		return nil, err
	}
	p.prefill.spared = true
	if p.decode, err = newFleet("decode", o.Decode); err != nil {
		return nil, err
	}
	if len(o.Decode) == 0 {
		return nil, errors.New("no decode server is given")
	}
	return p, nil
}

// dialer makes connections that end when nothing comes from the other machine for so long, not even
// the kernel's word that it has what was sent, or that it is there.
func dialer(silence time.Duration) *net.Dialer {
	every := max(time.Second, silence/4) // the kernel counts seconds
	return &net.Dialer{Timeout: silence,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: every, Interval: every},
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			set := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
					int(silence.Milliseconds()))
			})
			return errors.Join(set, err)
		}}
}

// Watch asks the servers for their health until ctx ends. It returns when nothing of the proxy
// runs.
func (p *Proxy) Watch(ctx context.Context) {
	defer p.client.CloseIdleConnections()
	defer p.partings.Wait()
	p.each(func(f *fleet, s *server) { // one that hangs does not hold up the others
		tick := time.NewTicker(p.opt.HealthEvery)
		defer tick.Stop()
		for {
			p.look(ctx, f, s)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// split are the routes whose prompts are computed elsewhere.
var split = []string{"/v1/completions", "/v1/chat/completions"}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" && r.Method == http.MethodGet {
		p.health(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.opt.MaxBody))
	if err != nil {
		status := http.StatusBadRequest
		if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
			status = http.StatusRequestEntityTooLarge
		}
		fail(w, r, &wire.Error{Status: status, Message: err.Error()})
		return
	}
	var times Times
	if r.Method == http.MethodPost && slices.Contains(split, r.URL.Path) &&
		len(p.prefill.servers) > 0 {
		times.Asked = time.Now()
		if params, server := p.compute(r, body); params != nil {
			times.Prefill, times.Computed = server, time.Now()
			// The client's own text stays as it is: the server checks it as if it had come from
			// there.
			at := bytes.IndexByte(body, '{') + 1
			first := slices.Concat(body[:at], []byte(`"kv_transfer_params":`), params, []byte(","),
				body[at:])
			complete := false
			defer func() {
				if !complete {
					p.decline(params)
				}
			}()
			complete = p.pass(w, r, first, body, &times)
			return
		}
	}
	p.pass(w, r, body, body, &times)
}

// parting bounds the word to a prefill server whose blocks are not needed.
const parting = 5 * time.Second

// decline gives the blocks of a prompt up whose answer did not come to its end: the decode server
// may never have heard of them, have refused the request, or be gone.
func (p *Proxy) decline(params json.RawMessage) {
	var k kvtransfer.Ticket
	if json.Unmarshal(params, &k) != nil || k.Port == 0 {
		return
	}
	p.partings.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), parting)
		defer cancel()
		if err := kvtransfer.Cancel(ctx, &k); err != nil {
			p.opt.Log.Debug("blocks were not given up", "transfer", k.RequestID, "error", err)
		}
	})
}

// dropped are the fields that have no meaning for the one token that a prefill server is asked for,
// or that it would do work for in vain.
var dropped = []string{"stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs",
	"logprob_token_ids", "prompt_logprobs", "min_tokens", "max_completion_tokens", "echo", "stop",
	"stop_token_ids", "response_format", "structured_outputs", "guided_json", "guided_regex",
	"guided_choice", "guided_grammar", "return_token_ids", "return_metrics",
	"thinking_token_budget", "repetition_detection"}

// prefillBody is what a prefill server is asked, nil for what is not split.
func prefillBody(body []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || len(fields) == 0 {
		return nil // the decode server says what is wrong
	}
	if beams := string(fields["use_beam_search"]); fields["kv_transfer_params"] != nil ||
		beams != "" && beams != "false" && beams != "null" {
		return nil
	}
	for _, name := range dropped {
		delete(fields, name)
	}
	fields["max_tokens"] = json.RawMessage("1")
	fields["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true}`)
	out, err := json.Marshal(fields)
	if err != nil {
		return nil
	}
	return out
}

// maxTicket bounds the answer of a prefill server.
const maxTicket = 64 << 20

// compute has a prefill server compute a request's prompt. It returns nil when none has.
func (p *Proxy) compute(r *http.Request, body []byte) (params json.RawMessage, server string) {
	ask := prefillBody(body)
	if ask == nil {
		return nil, ""
	}
	answer, s, err := p.send(r, p.prefill, ask, nil)
	if err != nil {
		p.opt.Log.Warn("no prefill server answers: the prompt is computed where it is decoded",
			"error", err)
		return nil, ""
	}
	defer answer.Body.Close()
	var a struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if answer.StatusCode != http.StatusOK ||
		json.NewDecoder(io.LimitReader(answer.Body, maxTicket)).Decode(&a) != nil ||
		len(a.Params) == 0 || a.Params[0] != '{' {
		return nil, ""
	}
	return a.Params, s.url
}

// overloaded is the 503 of Anthropic's clients.
const overloaded = 529

// again are the answers of a server that has not begun with a request, and that another one may
// take.
var again = []int{http.StatusBadGateway, http.StatusServiceUnavailable, overloaded}

// send asks the servers of a fleet, one after the other, until one has an answer that has begun.
// The last one's answer counts, whatever it is. It asks no more of them once too many have ended
// with the request. The caller closes its body.
func (p *Proxy) send(r *http.Request, f *fleet, body []byte, has *progress) (*http.Response,
	*server, error) {
	order := f.order()
	if len(order) == 0 {
		return nil, nil, fmt.Errorf("no %s server is well", f.what)
	}
	var errs []error
	for i, s := range order {
		ctx, release := f.acquire(r.Context(), s)
		q, err := http.NewRequestWithContext(ctx, r.Method, s.url+r.URL.RequestURI(),
			bytes.NewReader(body))
		if err != nil {
			release()
			return nil, nil, err
		}
		copyHeader(q.Header, r.Header)
		q.Header.Del("Accept-Encoding")
		has.ask(q.Header)
		answer, err := p.client.Do(q)
		if err == nil {
			answer.Body = &taken{answer.Body, release}
			if i == len(order)-1 || !slices.Contains(again, answer.StatusCode) {
				return answer, s, nil
			}
			answer.Body.Close()
		} else {
			release()
		}
		if r.Context().Err() != nil {
			return nil, nil, r.Context().Err()
		}
		if err != nil {
			p.mark(f, s, err)
			errs = append(errs, err)
			if !has.outlives(err) {
				break
			}
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s", s.url, answer.Status))
	}
	return nil, nil, errors.Join(errs...)
}

// hop are the headers of one connection (RFC 9110 §7.6.1), and those that are made anew.
var hop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length"}

func copyHeader(to, from http.Header) {
	maps.Copy(to, from)
	for _, line := range from["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			to.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hop {
		to.Del(name)
	}
}

// shapeOf is the shape of the answers to a client.
func shapeOf(r *http.Request) *api.Shape {
	return cmp.Or(anthropic.ShapeOf(r.URL.Path, r.Header), &api.OpenAI)
}

// fail answers with an error of the proxy's own, as a server would.
func fail(w http.ResponseWriter, r *http.Request, e *wire.Error) {
	shape := shapeOf(r)
	shape.Begin(w.Header(), call.NewID())
	shape.Fail(w, e)
}

// parse checks a server's address.
func parse(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return "", fmt.Errorf("%q is no address such as http://10.0.0.1:8000", address)
	}
	return strings.TrimRight(u.String(), "/"), nil
}
