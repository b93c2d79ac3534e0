package config

import "github.com/spf13/pflag"

// Answers are what a server does for requests that do not say it themselves.
type Answers struct {
	// ForceIncludeUsage has every stream end with its usage.
	ForceIncludeUsage bool
	// TokensAsTokenIDs shows tokens in log-probabilities as token_id:N.
	TokensAsTokenIDs bool
	// ChatTemplateKwargs is a JSON object of variables for the chat template; "" is none.
	ChatTemplateKwargs string
}

// answerFlags defines the flags of Answers.
func (c *Config) answerFlags(f *pflag.FlagSet) {
	a := &c.Server.Answers
	toggle(f, &a.ForceIncludeUsage, "enable-force-include-usage",
		"end every stream with its usage, asked for or not")
	toggle(f, &a.TokensAsTokenIDs, "return-tokens-as-token-ids",
		"show tokens in log-probabilities as token_id:N")
	f.Var(&object{&a.ChatTemplateKwargs}, "default-chat-template-kwargs",
		"JSON object of variables for the chat template, such as "+
			`{"enable_thinking":false}; those of a request go before`)
}
