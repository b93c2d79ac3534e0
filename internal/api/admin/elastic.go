package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
)

// Elastic is what the routes need that change the engines of a running server.
type Elastic interface {
	// ScaleEngines changes how many engines there are, Relayout how many ranks divide each layer of
	// the model. Both return when that is done; an error leaves what there was.
	ScaleEngines(ctx context.Context, to int, drain time.Duration) error
	Relayout(ctx context.Context, z open.Sizes) error
	// Scaling is the change that is under way, in words; "" for none.
	Scaling() string
}

// The time that engines which are removed have for their requests, as vLLM has it, and its bound.
const (
	defaultDrain = 120
	maxDrain     = 24 * 60 * 60
)

// scaler answers the routes that change the engines.
type scaler struct {
	*server.Server
	engines Elastic
}

// ElasticRoutes are those of a server whose engines can be changed, by clients who may.
func ElasticRoutes(srv *server.Server, engines Elastic, allowed bool) []server.Route {
	s := scaler{srv, engines}
	scale, asVLLM := s.scale, s.scaleAsVLLM
	if !allowed {
		scale, asVLLM = mayNotScale, mayNotScale
	}
	is := server.Doc{Summary: "Say whether the engines are being changed", Answer: scaling{}}
	return []server.Route{
		{Method: "POST", Path: "/scale_elastic", Handler: scale,
			Doc: server.Doc{Summary: "Change the number of engines, or their layout",
				Answer: scaled{}, Query: []server.Param{{Name: "dp", Type: "integer"},
					{Name: "tp", Type: "integer"}, {Name: "drain_timeout", Type: "integer"}}}},
		{Method: "POST", Path: "/scale_elastic_ep", Handler: asVLLM,
			Doc: server.Doc{Summary: "Change the number of engines", Answer: scaled{},
				Body: server.Reads(decodeScale, `{"new_data_parallel_size":2}`)}},
		{Method: "POST", Path: "/is_scaling_elastic_ep", Handler: s.isScaling, Doc: is},
		{Method: "GET", Path: "/is_scaling_elastic_ep", Handler: s.isScaling, Doc: is},
	}
}

// scaled says what has been changed.
type scaled struct {
	Message string `json:"message"`
	DP      int    `json:"data_parallel_size,omitempty"`
	TP      int    `json:"tensor_parallel_size,omitempty"`
}

// scaling says what is being changed, "" for nothing.
type scaling struct {
	Scaling bool   `json:"is_scaling_elastic_ep"`
	Detail  string `json:"detail"`
}

// mayNotScale is the answer of a server whose engines every client could change.
func mayNotScale(http.ResponseWriter, *server.Request) error {
	return &wire.Error{Status: http.StatusForbidden,
		Message: "the engines of this server are not changed: start it with --enable-elastic-ep " +
			"or with --api-key"}
}

// scale answers POST /scale_elastic?dp=N&drain_timeout=S or ?tp=N.
func (s scaler) scale(w http.ResponseWriter, r *server.Request) error {
	q := r.URL.Query()
	if q.Has("pp") {
		return wire.BadRequest("pp",
			"`pp` cannot be changed: stages hold other layers and other parts of the KV cache. "+
				"Start the server with another --pipeline-parallel-size")
	}
	if q.Has("dp") == q.Has("tp") {
		return wire.BadRequest("dp",
			"one of `dp`, the number of engines, and `tp`, the tensor parallel size, must be given")
	}
	if q.Has("tp") {
		n, bad := wire.QueryInt(q, "tp", 0, 1, engine.MaxEngines)
		if bad != nil {
			return bad
		}
		if err := s.engines.Relayout(r.Context(), open.Sizes{TP: n}); err != nil {
			return scalingError(err, "tp")
		}
		return s.WriteJSON(w, scaled{Message: "Scaled to another layout", TP: n})
	}
	n, bad := wire.QueryInt(q, "dp", 0, 1, engine.MaxEngines)
	if bad != nil {
		return bad
	}
	drain, bad := wire.QueryInt(q, "drain_timeout", defaultDrain, 0, maxDrain)
	if bad != nil {
		return bad
	}
	return s.scaleTo(w, r, n, drain, "dp")
}

// scaleAsVLLM answers POST /scale_elastic_ep.
func (s scaler) scaleAsVLLM(w http.ResponseWriter, r *server.Request) error {
	f, err := s.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer f.Done()
	to, bad := decodeScale(f)
	if bad != nil {
		return bad
	}
	return s.scaleTo(w, r, to.engines, to.drain, newSize)
}

// newSize is the field of vLLM's request that says how many engines there are to be.
const newSize = "new_data_parallel_size"

// scaleRequest is vLLM's. The drain is in seconds.
type scaleRequest struct{ engines, drain int }

func decodeScale(f *wire.Fields) (scaleRequest, *wire.Error) {
	if _, there := f.Members[newSize]; !there {
		return scaleRequest{}, wire.BadRequest(newSize, "`%s` is required", newSize)
	}
	return scaleRequest{int(f.Ranged(newSize, 1, 1, engine.MaxEngines)),
		int(f.Ranged("drain_timeout", defaultDrain, 1, maxDrain))}, f.Err
}

// scaleTo changes how many engines there are.
func (s scaler) scaleTo(w http.ResponseWriter, r *server.Request, n, drain int,
	param string) error {
	err := s.engines.ScaleEngines(r.Context(), n, time.Duration(drain)*time.Second)
	if err != nil {
		return scalingError(err, param)
	}
	return s.WriteJSON(w, scaled{Message: "Scaled to the number of data parallel engines", DP: n})
}

// scalingError is the answer where the engines stay as they were.
func scalingError(err error, param string) error {
	var refused *open.Refused
	switch {
	case errors.As(err, &refused):
		return wire.BadRequest(param, "%s", refused.Reason)
	case errors.Is(err, engine.ErrScaling):
		return &wire.Error{Status: http.StatusConflict, Message: err.Error()}
	case errors.Is(err, engine.ErrBusy):
		return &wire.Error{Status: http.StatusRequestTimeout, Expected: true,
			Message: err.Error() + ": they stay"}
	case errors.Is(err, engine.ErrStopped):
		return wire.Draining()
	case errors.Is(err, context.Canceled):
		return wire.Cancelled() // it goes on
	}
	return &wire.Error{Status: http.StatusInternalServerError,
		Message: "the engines stay as they were: " + strings.TrimSpace(err.Error())}
}

// isScaling answers /is_scaling_elastic_ep.
func (s scaler) isScaling(w http.ResponseWriter, _ *server.Request) error {
	what := s.engines.Scaling()
	return s.WriteJSON(w, scaling{what != "", what})
}
