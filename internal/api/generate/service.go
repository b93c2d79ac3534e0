package generate

import (
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Options configure a Service. Info, Engine and Config are needed.
type Options struct {
	// Info describes the model that Engine runs.
	Info   *open.Info
	Engine Submitter
	// Config is the program's, config.Default at least: of it count what Model says of requests,
	// and the defaults of answers.
	Config *config.Config
	Limits wire.Limits
	// Metrics counts requests that the engine rejects; nil for none.
	Metrics *metrics.Metrics
	// SpecialTokensInContent lets the text of special tokens in chat messages become control
	// tokens, as vLLM does.
	SpecialTokensInContent bool
	// Priorities says that the engine schedules by them.
	Priorities bool
	// WeightVersion is asked for the version of the weights; nil where they cannot be changed.
	WeightVersion func() string
	// Adapters are those that requests may name as their model; nil for none.
	Adapters *adapters.Control
	// Abortable keeps the streams of requests by their ids (Abort).
	Abortable bool
}

// Service makes answers of typed requests: it checks them against the model, renders and tokenises
// their prompts, resolves their parameters and submits them. It is safe for concurrent use.
type Service struct {
	opt           Options
	Model         Model
	lim           wire.Limits
	specials      *specialTexts
	maxTokenBytes int
	inFlight      inFlight
	// seeds counts the seeds given to requests that brought none.
	seeds atomic.Uint64
}

// New checks the options and makes a Service.
func New(o Options) (*Service, error) {
	lim := o.Limits.WithDefaults()
	m, err := newModel(o.Info, o.Config, lim)
	if err != nil {
		return nil, err
	}
	s := &Service{opt: o, Model: m, lim: lim}
	var special []string
	if tok := m.Tokenizer; tok != nil {
		for id := range int32(tok.VocabSize()) {
			s.maxTokenBytes = max(s.maxTokenBytes, len(tok.TokenBytes(id)))
			if text, ok := tok.Token(id); ok && tok.IsSpecial(id) {
				special = append(special, text)
			}
		}
	}
	s.specials = newSpecialTexts(special)
	return s, nil
}

// WeightVersion is the version of the weights; "" where they cannot be changed.
func (s *Service) WeightVersion() string {
	if s.opt.WeightVersion == nil {
		return ""
	}
	return s.opt.WeightVersion()
}

// Generates refuses requests for text where the model pools.
func (s *Service) Generates() error {
	if s.Model.Pooling == nil {
		return nil
	}
	return wire.BadRequest("model",
		"The model does not generate text: the server was started with --runner pooling")
}

// Serves says that a model has this name.
func (s *Service) Serves(name string) bool {
	_, bad := s.CheckModel(name)
	return bad == nil
}

// Adapters are those that are loaded.
func (s *Service) Adapters() []adapters.Adapter { return s.opt.Adapters.List() }

// Adapter is the loaded one of a name.
func (s *Service) Adapter(name string) (adapters.Adapter, bool) { return s.opt.Adapters.Find(name) }

// Abort ends those requests of these ids that are in flight, with what they have.
func (s *Service) Abort(ids []string) { s.inFlight.abort(ids) }

// Bind is a decoder of requests that are checked against the model.
func Bind[T any](
	s *Service, decode func(*wire.Fields, *Model) (T, *wire.Error),
) func(*wire.Fields) (T, *wire.Error) {
	return func(f *wire.Fields) (T, *wire.Error) { return decode(f, &s.Model) }
}
