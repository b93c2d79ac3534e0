package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Speculative says how tokens are guessed, which a step verifies. It is the value of
// --speculative-config, a JSON object with vLLM's keys.
type Speculative struct {
	// Method is Ngram, Suffix, DraftModel, MTP or Eagle3, or "" for none.
	Method string
	// Model is the folder or the Hub repository of the draft model, Revision that of the latter.
	Model, Revision string
	// Tokens is how many are guessed at a time, at most.
	Tokens int
	// LookupMin and LookupMax are how many tokens of a text's end are looked up.
	LookupMin, LookupMax int
	// CachedRequests is how many outputs of others are looked at, MaxFactor by how many times the
	// guess may be longer than what was found, MinProb the least probability of a guess; of Suffix.
	CachedRequests     int
	MaxFactor, MinProb float64

	text string
}

// The methods, by vLLM's names.
const (
	// Ngram guesses what followed the last tokens of a text where they occurred in it before.
	Ngram = "ngram"
	// Suffix guesses what followed most often, in the text and in outputs of other requests.
	Suffix = "suffix"
	// DraftModel guesses what a smaller model of the same vocabulary says.
	DraftModel = "draft_model"
	// MTP guesses what a layer of the model's checkpoint says that predicts a token more.
	MTP = "mtp"
	// Eagle3 guesses by a head of EAGLE-3, which goes on from hidden states of the model.
	Eagle3 = "eagle3"
)

// ByModel says that a model guesses, or a head: a part of one.
func (s *Speculative) ByModel() bool { return s.Method == DraftModel || s.ByHead() }

// ByHead says that a head guesses, from what the model computes.
func (s *Speculative) ByHead() bool { return s.Method == MTP || s.Method == Eagle3 }

// methods lists them.
const methods = Ngram + ", " + Suffix + ", " + DraftModel + ", " + MTP + " or " + Eagle3

// speculativeJSON are the accepted keys of --speculative-config.
type speculativeJSON struct {
	Method   string `json:"method"`
	Model    string `json:"model"`
	Revision string `json:"revision"`
	Ranks    *int   `json:"draft_tensor_parallel_size"`
	Tokens   *int   `json:"num_speculative_tokens"`
	Min      *int   `json:"prompt_lookup_min"`
	Max      *int   `json:"prompt_lookup_max"`

	Depth    *int     `json:"suffix_decoding_max_tree_depth"`
	Requests *int     `json:"suffix_decoding_max_cached_requests"`
	Factor   *float64 `json:"suffix_decoding_max_spec_factor"`
	MinProb  *float64 `json:"suffix_decoding_min_token_prob"`
}

// otherMethods are vLLM's values of method that are refused.
var otherMethods = []string{"eagle", "medusa", "mlp_speculator", "ernie_mtp", "mimo_mtp",
	"longcat_flash_mtp"}

// mtpMethods are vLLM's older names of MTP, one for each family.
var mtpMethods = []string{"deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp"}

// lookedUp is vLLM's default of how many tokens are looked up.
const lookedUp = 5

// String implements pflag.Value.
func (s *Speculative) String() string { return s.text }

// Type implements pflag.Value.
func (s *Speculative) Type() string { return "json" }

// Set implements pflag.Value.
func (s *Speculative) Set(text string) error {
	limits := jsonx.Limits{Bytes: 1 << 16, Depth: 4, Members: 256}
	if err := jsonx.Read([]byte(text), limits, (*jsonx.Reader).Skip); err != nil {
		return err
	}
	var j speculativeJSON
	if err := decodeStrict(text, &j); err != nil {
		return err
	}
	if j.Method == "" && strings.Trim(j.Model, "[]") == Ngram {
		j.Method, j.Model = Ngram, "" // vLLM's older spelling
	}
	if j.Method == "" && j.Model != "" {
		j.Method = DraftModel
	}
	if slices.Contains(mtpMethods, j.Method) {
		j.Method = MTP
	}
	v := Speculative{Method: j.Method, text: text}
	var err error
	switch {
	case j.Method != DraftModel && j.Method != Eagle3 &&
		(j.Model != "" || j.Revision != "" || j.Ranks != nil):
		err = fmt.Errorf("model, revision and draft_tensor_parallel_size are for the methods %s "+
			"and %s, not %q", DraftModel, Eagle3, j.Method)
	case j.Method != Suffix && (j.Depth != nil || j.Requests != nil || j.Factor != nil ||
		j.MinProb != nil):
		err = fmt.Errorf("suffix_decoding_… is for the method %s, not %q", Suffix, j.Method)
	case j.Method != Ngram && (j.Min != nil || j.Max != nil):
		err = fmt.Errorf("prompt_lookup_min and prompt_lookup_max are for the method %s, not %q",
			Ngram, j.Method)
	case j.Method == Ngram:
		err = v.setNgram(&j)
	case j.Method == Suffix:
		err = v.setSuffix(&j)
	case j.Method == DraftModel || j.Method == Eagle3:
		err = v.setDraftModel(&j)
	case j.Method == MTP && j.Tokens == nil:
		err = errNoTokens
	case j.Method == MTP:
		v.Tokens = *j.Tokens
	case slices.Contains(otherMethods, j.Method):
		err = fmt.Errorf("method %q is not available: tokens are guessed by %s", j.Method, methods)
	default:
		err = fmt.Errorf("method %q is not %s", j.Method, methods)
	}
	if err != nil {
		return err
	}
	if v.Tokens < 1 || v.Tokens > step.MaxDrafts {
		return fmt.Errorf("num_speculative_tokens %d is not 1 to %d", v.Tokens, step.MaxDrafts)
	}
	*s = v
	return nil
}

var errNoTokens = errors.New("num_speculative_tokens is missing")

func (s *Speculative) setDraftModel(j *speculativeJSON) error {
	switch {
	case j.Model == "":
		return fmt.Errorf("model is missing: the method %s guesses by one", j.Method)
	case j.Tokens == nil:
		return errNoTokens
	case j.Ranks != nil && *j.Ranks != 1:
		return fmt.Errorf("draft_tensor_parallel_size %d is not 1: the rank that samples has the "+
			"draft model alone", *j.Ranks)
	}
	s.Model, s.Revision, s.Tokens = j.Model, j.Revision, *j.Tokens
	return nil
}

func (s *Speculative) setNgram(j *speculativeJSON) error {
	if j.Tokens == nil {
		return errNoTokens
	}
	s.Tokens, s.LookupMin, s.LookupMax = *j.Tokens, lookedUp, lookedUp
	if n := cmp.Or(j.Min, j.Max); n != nil {
		s.LookupMin, s.LookupMax = *n, *cmp.Or(j.Max, j.Min)
	}
	switch {
	case s.LookupMin < 1:
		return fmt.Errorf("prompt_lookup_min %d is less than 1", s.LookupMin)
	case s.LookupMax < s.LookupMin:
		return fmt.Errorf("prompt_lookup_max %d is less than prompt_lookup_min %d", s.LookupMax,
			s.LookupMin)
	}
	return nil
}

// vLLM's defaults of the method suffix.
const (
	treeDepth      = 24
	cachedRequests = 10000
	specFactor     = 1
	tokenProb      = 0.1
)

func (s *Speculative) setSuffix(j *speculativeJSON) error {
	s.LookupMin, s.LookupMax = 1, *orDefault(j.Depth, treeDepth)
	s.Tokens = *orDefault(j.Tokens, min(s.LookupMax, step.MaxDrafts))
	s.CachedRequests = *orDefault(j.Requests, cachedRequests)
	s.MaxFactor, s.MinProb = *orDefault(j.Factor, specFactor), *orDefault(j.MinProb, tokenProb)
	switch {
	case s.LookupMax < 1:
		return fmt.Errorf("suffix_decoding_max_tree_depth %d is less than 1", s.LookupMax)
	case s.CachedRequests < 0 || s.CachedRequests > math.MaxInt32:
		return fmt.Errorf("suffix_decoding_max_cached_requests %d is not 0 to %d",
			s.CachedRequests, math.MaxInt32)
	case !(s.MaxFactor > 0):
		return fmt.Errorf("suffix_decoding_max_spec_factor %v is not positive", s.MaxFactor)
	case !(s.MinProb >= 0 && s.MinProb <= 1):
		return fmt.Errorf("suffix_decoding_min_token_prob %v is not 0 to 1", s.MinProb)
	}
	return nil
}

func orDefault[T any](v *T, otherwise T) *T { return cmp.Or(v, &otherwise) }
