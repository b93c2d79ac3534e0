package config

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Answers are what a server does for requests that do not say it themselves.
type Answers struct {
	// StreamInterval is how many tokens an event of a stream has at least, but for the first and
	// the last one.
	StreamInterval int
	// ForceIncludeUsage has every stream end with its usage.
	ForceIncludeUsage bool
	// PerRequestMetrics has answers tell their times, unless a request says whether.
	PerRequestMetrics bool
	// TokensAsTokenIDs shows tokens in log-probabilities as token_id:N.
	TokensAsTokenIDs bool
	// ChatTemplateKwargs is a JSON object of variables for the chat template; "" is none.
	ChatTemplateKwargs string
	// CompactJSON leaves no white space in JSON that answers are constrained to, AnyKeyOrder lets
	// objects have their keys in any order, not the schema's.
	CompactJSON, AnyKeyOrder bool
	// TokenizerInfo has the route /tokenizer_info answer with the tokenizer's configuration.
	TokenizerInfo bool
}

// frontend is the group of flags of the HTTP surface.
const frontend = "Frontend"

// AnswerFlags defines the flags of Answers, and of calls of tools in them. Rows of a file are
// answered by them, too.
func (c *Config) AnswerFlags(f *pflag.FlagSet) {
	a, m := &c.Server.Answers, &c.Model
	f.BoolVar(&c.Server.EnablePromptTokensDetails, "enable-prompt-tokens-details", false,
		"report cached tokens in usage")
	f.BoolVar(&m.EnableAutoToolChoice, "enable-auto-tool-choice", m.EnableAutoToolChoice,
		"let the model choose whether to call the tools of a request")
	f.BoolVar(&m.ExcludeToolsWhenToolChoiceNone, "exclude-tools-when-tool-choice-none", false,
		"leave tools out of the prompt when the request says that none is to be called")
	f.StringVar(&m.ToolCallParser, "tool-call-parser", m.ToolCallParser,
		"how the model writes calls of tools: a name, auto for what its chat template shows, or "+
			"none")
	Choices(f, "tool-call-parser", toolParsers()...)
	f.IntVar(&a.StreamInterval, "stream-interval", a.StreamInterval,
		"tokens for each event of a stream but the first and the last one")
	f.BoolVar(&a.ForceIncludeUsage, "enable-force-include-usage", false,
		"end every stream with its usage, asked for or not")
	f.BoolVar(&a.PerRequestMetrics, "enable-per-request-metrics", false,
		"tell in each answer how long it took, as a request does that sets return_metrics")
	f.BoolVar(&a.TokensAsTokenIDs, "return-tokens-as-token-ids", false,
		"show tokens in log-probabilities as token_id:N")
	f.BoolVar(&a.TokenizerInfo, "enable-tokenizer-info-endpoint", false,
		"answer GET /tokenizer_info with tokenizer_config.json and the chat template")
	f.Var(&object{&a.ChatTemplateKwargs}, "default-chat-template-kwargs",
		"JSON object of variables for the chat template, such as "+
			`{"enable_thinking":false}; those of a request go before`)
	f.Var(&structuredOutputs{answers: a}, "structured-outputs-config",
		`JSON object of how answers are constrained: {"disable_any_whitespace":true} for JSON `+
			`without white space, {"any_key_order":true} for keys in another order than the schema's`)
	markGroup(f, frontend)
}

// structuredOutputs is vLLM's StructuredOutputsConfig, of which one member has a meaning.
type structuredOutputs struct {
	answers *Answers
	text    string
}

func (o *structuredOutputs) String() string { return o.text }

// Type implements pflag.Value.
func (o *structuredOutputs) Type() string { return "JSON" }

// Set implements pflag.Value.
func (o *structuredOutputs) Set(text string) error {
	var c struct {
		Backend              string `json:"backend"`
		DisableFallback      bool   `json:"disable_fallback"`
		Compact              bool   `json:"disable_any_whitespace"`
		AdditionalProperties bool   `json:"disable_additional_properties"`
		InReasoning          bool   `json:"enable_in_reasoning"`
		AnyKeyOrder          bool   `json:"any_key_order"`
	}
	if err := decodeStrict(text, &c); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	switch {
	case c.AdditionalProperties:
		return errors.New("disable_additional_properties is not supported: schemas are obeyed as " +
			"they are")
	case c.InReasoning:
		return errors.New("enable_in_reasoning is not supported: constraints begin after the " +
			"reasoning")
	}
	o.answers.CompactJSON, o.answers.AnyKeyOrder, o.text = c.Compact, c.AnyKeyOrder, text
	return nil
}
