package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// trainer answers the routes by which a trainer steers the server.
type trainer struct {
	*server.Server
	control *rlhf.Control
	lim     wire.Limits
	// abortIDs ends those of the requests of these ids that are in flight.
	abortIDs func(ids []string)
}

// TrainerRoutes are those of --enable-rlhf (all), or those of --enable-sleep-mode alone. abort ends
// the requests of these ids that are in flight.
func TrainerRoutes(s *server.Server, control *rlhf.Control, abort func(ids []string),
	lim wire.Limits, all bool) []server.Route {
	t := trainer{s, control, lim, abort}
	answers := []struct {
		method, path string
		by           server.Handler
	}{
		{"POST", "/sleep", t.steer(t.sleep)},
		{"POST", "/wake_up", t.steer(t.wake)},
		{"GET", "/is_sleeping", t.says("is_sleeping", func() any { return t.control.Sleeping() })},
		{"POST", "/pause", t.steer(t.pause)}, // from here on those of --enable-rlhf
		{"POST", "/resume", t.steer(t.resume)},
		{"GET", "/is_paused", t.says("is_paused", func() any { return t.control.Paused() })},
		{"POST", "/abort_requests", t.steer(t.abort)},
		{"POST", "/init_weight_transfer_engine", t.steer(t.init)},
		{"POST", "/start_weight_update", t.steer(t.start)},
		{"POST", "/update_weights", t.steer(t.update)},
		{"POST", "/finish_weight_update", t.steer(t.finish)},
		{"POST", "/update_weight_version", t.steer(t.setVersion)},
		{"GET", "/weight_info", func(w http.ResponseWriter, _ *server.Request) error {
			return s.WriteJSON(w, t.control.Info())
		}},
		{"POST", "/reset_prefix_cache", t.steer(t.resetPrefixCache)},
		{"POST", "/collective_rpc", t.steer(t.collectiveRPC)},
		{"GET", "/get_world_size", t.steer(t.worldSize)},
	}
	if !all {
		answers = answers[:3]
	}
	var list []server.Route
	for _, a := range answers {
		list = append(list, server.Route{Method: a.method, Path: a.path, Handler: a.by,
			Doc: trainerDocs[a.path]})
	}
	return list
}

// steer is a handler of a call without a body or with a JSON object, whose fields it reads. What it
// returns is the answer; nil is an empty one.
func (t trainer) steer(h func(r *server.Request, f *wire.Fields) (any, error)) server.Handler {
	return func(w http.ResponseWriter, r *server.Request) error {
		f := wire.NewFields(nil, t.lim)
		if r.ContentLength != 0 {
			var err error
			if f, err = t.ReadBody(w, r); err != nil {
				return err
			}
			defer f.Done()
		}
		answer, err := h(r, f)
		if err != nil {
			return t.steerError(err)
		}
		t.LogUnknown(f)
		if answer == nil {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		return t.WriteJSON(w, answer)
	}
}

// steerError gives the errors of a trainer's calls their status.
func (t trainer) steerError(err error) error {
	var order *state.WrongOrder
	var differ *weights.MismatchError
	var source *rlhf.SourceError
	switch {
	case errors.As(err, &order):
		return &wire.Error{Status: http.StatusConflict, Message: err.Error()}
	case errors.As(err, &differ), errors.As(err, &source):
		return wire.BadRequest("update_info", "%s", err)
	}
	// Who steers the server is told what went wrong in it, such as the loss of a rank.
	known := *t.StatusOf(err)
	if known.Message == server.InternalError {
		known.Message = err.Error()
	}
	return &known
}

func (t trainer) says(name string, f func() any) server.Handler {
	return func(w http.ResponseWriter, _ *server.Request) error {
		return t.WriteJSON(w, map[string]any{name: f()})
	}
}

// mode is the parameter of this name: what becomes of the requests in flight.
func mode(r *server.Request) (state.Mode, *wire.Error) {
	text := cmp.Or(r.URL.Query().Get("mode"), string(state.Abort))
	if m := state.Mode(text); slices.Contains(state.Modes(), m) {
		return m, nil
	}
	return "", wire.BadRequest("mode", "`mode` must be abort, wait or keep, got %q",
		wire.Clip(text))
}

func (t trainer) pause(r *server.Request, _ *wire.Fields) (any, error) {
	m, bad := mode(r)
	if bad != nil {
		return nil, bad
	}
	clearCache := true
	if q := r.URL.Query(); q.Has("clear_cache") {
		if clearCache, bad = wire.QueryBool(q, "clear_cache"); bad != nil {
			return nil, bad
		}
	}
	if err := t.control.Pause(r.Context(), m, clearCache); err != nil {
		return nil, err
	}
	return map[string]string{"status": "paused"}, nil
}

func (t trainer) resume(r *server.Request, _ *wire.Fields) (any, error) {
	if err := t.control.Resume(r.Context()); err != nil {
		return nil, err
	}
	return map[string]string{"status": "resumed"}, nil
}

// abort ends requests: those of request_ids, or all.
func (t trainer) abort(r *server.Request, f *wire.Fields) (any, error) {
	ids := f.Strings("request_ids", f.Array("request_ids"), 65536, 256)
	if f.Err != nil {
		return nil, f.Err
	}
	if ids != nil {
		t.abortIDs(ids)
	} else if err := t.control.AbortAll(r.Context()); err != nil {
		return nil, err
	}
	return map[string]string{"status": "aborted"}, nil
}

func (t trainer) sleep(r *server.Request, _ *wire.Fields) (any, error) {
	level, bad := wire.QueryInt(r.URL.Query(), "level", 1, 0, 2)
	if bad != nil {
		return nil, bad
	}
	m, bad := mode(r)
	if bad != nil {
		return nil, bad
	}
	return nil, t.control.Sleep(r.Context(), level, m)
}

func (t trainer) wake(r *server.Request, _ *wire.Fields) (any, error) {
	tags := r.URL.Query()["tags"]
	for _, tag := range tags {
		if !slices.Contains(state.Tags(), tag) {
			return nil, wire.BadRequest("tags", "`tags` must be weights or kv_cache, got %q",
				wire.Clip(tag))
		}
	}
	return nil, t.control.Wake(r.Context(), tags)
}

func (t trainer) init(r *server.Request, f *wire.Fields) (any, error) {
	raw := f.Object("init_info")
	if f.Err != nil {
		return nil, f.Err
	}
	var info initInfo
	if raw != nil {
		if err := json.Unmarshal(raw, &info); err != nil {
			return nil, wire.BadRequest("init_info", "`init_info`: %s",
				strings.TrimPrefix(err.Error(), "json: "))
		}
	}
	session, err := t.control.Init(r.Context(), info.Transport == "unix" || info.Transport == "tcp")
	if err != nil {
		return nil, err
	}
	session.TCP = reachedAt(r, session.TCP)
	return sessionAnswer{"Weight transfer initialized", session}, nil
}

// initInfo is what a trainer says of how it sends weights.
type initInfo struct {
	Transport string `json:"transport"`
}

// sessionAnswer tells a trainer how to send them.
type sessionAnswer struct {
	Message string       `json:"message"`
	Session rlhf.Session `json:"session"`
}

// reachedAt is an address of this machine for the client of r: one that stands for all of the
// machine's becomes the one at which the request has come.
func reachedAt(r *server.Request, address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsUnspecified() {
		return address
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return address
	}
	return netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), at.Port()).String()
}

func (t trainer) start(r *server.Request, f *wire.Fields) (any, error) {
	if !f.Boolean("is_checkpoint_format", true) {
		f.Fail(wire.BadRequest("is_checkpoint_format",
			"`is_checkpoint_format` must be true: weights have the names of a checkpoint"))
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if err := t.control.Start(r.Context()); err != nil {
		return nil, err
	}
	return map[string]string{"message": "Weight update started"}, nil
}

// updateInfo is what update_weights says of the weights that it brings.
type updateInfo struct {
	Path       string    `json:"path"`
	Stream     string    `json:"stream"`
	Names      []string  `json:"names"`
	DTypeNames []string  `json:"dtype_names"`
	Shapes     [][]int   `json:"shapes"`
	Offsets    [][]int   `json:"offsets"`
	Positions  []int64   `json:"positions"`
	Checksums  []*uint32 `json:"checksums"`
}

func (t trainer) update(r *server.Request, f *wire.Fields) (any, error) {
	raw := f.Object("update_info")
	if f.Err == nil && raw == nil {
		f.Fail(wire.BadRequest("update_info", "`update_info` is required"))
	}
	if f.Err != nil {
		return nil, f.Err
	}
	var info updateInfo
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&info); err != nil {
		return nil, wire.BadRequest("update_info", "`update_info`: %s",
			strings.TrimPrefix(err.Error(), "json: "))
	}
	source, bad := info.source()
	if bad != nil {
		return nil, bad
	}
	if err := t.control.Update(r.Context(), source); err != nil {
		return nil, err
	}
	return map[string]string{"message": "Weights updated"}, nil
}

// source checks that the lists fit together.
func (u *updateInfo) source() (rlhf.Source, *wire.Error) {
	s := rlhf.Source{Path: u.Path, Stream: u.Stream}
	if (u.Path == "") == (u.Stream == "") {
		return s, wire.BadRequest("update_info", "`update_info` has either `path` or `stream`")
	}
	n := len(u.Names)
	if u.Path != "" {
		if n > 0 {
			return s, wire.BadRequest("update_info",
				"`update_info.names` goes with `stream`, not `path`")
		}
		return s, nil
	}
	for _, l := range []struct {
		name           string
		length, needed int
	}{{"dtype_names", len(u.DTypeNames), n}, {"shapes", len(u.Shapes), n},
		{"offsets", len(u.Offsets), 0}, {"positions", len(u.Positions), 0},
		{"checksums", len(u.Checksums), 0}} {
		if l.length != n && l.length != l.needed {
			return s, wire.BadRequest("update_info", "`update_info.%s` has %d entries for %d names",
				l.name, l.length, n)
		}
	}
	s.Pieces = make([]weights.Piece, n)
	for i := range s.Pieces {
		p := &s.Pieces[i]
		p.Name, p.Shape = u.Names[i], u.Shapes[i]
		// what is none is a difference to the model
		p.DType, _ = checkpoint.ParseDType(u.DTypeNames[i])
		if u.Offsets != nil {
			p.Offset = u.Offsets[i]
		}
		if u.Positions != nil {
			p.Position = u.Positions[i]
		}
		if u.Checksums != nil {
			p.CRC = u.Checksums[i]
		}
	}
	return s, nil
}

// version reads a field that names the weights: it goes into a header.
func version(f *wire.Fields, name string) string {
	v := f.OptString(name)
	if v == nil {
		return ""
	}
	bad := len(*v) == 0 || len(*v) > 128
	for _, c := range *v {
		bad = bad || c <= ' ' || c > '~'
	}
	if bad {
		f.Fail(wire.BadRequest(name, "`%s` must have 1 to 128 visible ASCII characters", name))
	}
	return *v
}

func (t trainer) finish(r *server.Request, f *wire.Fields) (any, error) {
	v := version(f, "weight_version")
	if f.Err != nil {
		return nil, f.Err
	}
	if err := t.control.Finish(r.Context(), v); err != nil {
		return nil, err
	}
	return map[string]string{"message": "Weight update finished",
		"weight_version": t.control.Version()}, nil
}

func (t trainer) setVersion(_ *server.Request, f *wire.Fields) (any, error) {
	v := version(f, "new_version")
	if f.Err == nil && v == "" {
		f.Fail(wire.BadRequest("new_version", "`new_version` is required"))
	}
	if f.Err != nil {
		return nil, f.Err
	}
	t.control.SetVersion(v)
	return map[string]string{"message": "Weight version updated", "weight_version": v}, nil
}

func (t trainer) resetPrefixCache(r *server.Request, _ *wire.Fields) (any, error) {
	running, bad := wire.QueryBool(r.URL.Query(), "reset_running_requests")
	if bad != nil {
		return nil, bad
	}
	external, bad := wire.QueryBool(r.URL.Query(), "reset_external")
	if bad != nil {
		return nil, bad
	}
	done, err := t.control.ResetPrefixCache(r.Context(), running, external)
	if err != nil {
		return nil, err
	}
	return map[string]bool{"success": done}, nil
}

func (t trainer) collectiveRPC(r *server.Request, f *wire.Fields) (any, error) {
	method := f.OptString("method")
	args := f.Array("args")
	timeout := f.OptFloat("timeout")
	f.Unsupported("kwargs", "{}")
	switch {
	case f.Err != nil:
		return nil, f.Err
	case method == nil || !slices.Contains(calls.Public(), *method):
		return nil, wire.BadRequest("method", "`method` must be one of %s",
			strings.Join(calls.Public(), ", "))
	case timeout != nil && !(*timeout > 0 && *timeout < 1e6):
		return nil, wire.BadRequest("timeout", "`timeout` must be a positive number of seconds")
	}
	var list []json.RawMessage
	if args != nil {
		if err := json.Unmarshal(args, &list); err != nil {
			return nil, wire.BadRequest("args", "`args`: %s", err)
		}
	}
	var arg []byte
	if len(list) > 1 {
		return nil, wire.BadRequest("args", "`args` has %d entries; methods here take at most one",
			len(list))
	}
	if len(list) == 1 {
		arg = list[0]
	}
	var limit time.Duration
	if timeout != nil {
		limit = time.Duration(*timeout * float64(time.Second))
	}
	results, err := t.control.Call(r.Context(), *method, arg, limit)
	if err != nil {
		return nil, fmt.Errorf("collective_rpc: %w", err)
	}
	answers := make([]json.RawMessage, len(results))
	for i, raw := range results {
		answers[i] = json.RawMessage("null")
		if json.Valid(raw) {
			answers[i] = raw
		}
	}
	return map[string]any{"results": answers}, nil
}

func (t trainer) worldSize(r *server.Request, _ *wire.Fields) (any, error) {
	all := true
	if q := r.URL.Query(); q.Has("include_dp") {
		var bad *wire.Error
		if all, bad = wire.QueryBool(q, "include_dp"); bad != nil {
			return nil, bad
		}
	}
	return map[string]int{"world_size": t.control.WorldSize(all)}, nil
}
