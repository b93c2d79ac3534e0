// Package openai is the dialect of OpenAI's chat and completions, with vLLM's extra fields, its
// batch of conversations, its route for token ids, and the routes for models and tokens.
//
// An answer is read once (chatAnswer, completionAnswer): its pieces go to a sink that sends them as
// events, or to one that adds them up.
package openai
