package api

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/text/output"
)

// spoken is what a model says: the text that each token adds, of which one ends with the last token
// of a character, and how it ends.
type spoken struct {
	pieces []string
	// stop ends the output where it is not "". include leaves it in the text.
	stop    string
	include bool
	// token is the id that ends the output, -1 for none, 0 for the one that no request asks for.
	token  int32
	finish sample.Finish
}

// deltas are what the engine makes of it when it is never late: one for each token.
func (v spoken) deltas(r *engine.Request) []engine.Delta {
	var list []engine.Delta
	var all, given string
	runes := 0
	for i, piece := range v.pieces {
		id := int32(300 + i)
		d := engine.Delta{Tokens: []int32{id}, TextOffsets: []int{len(all)},
			RuneOffsets: []int{runes},
			StopToken:   -1, PromptTokens: len(r.Prompt), CachedTokens: 2, OutputTokens: i + 1}
		if r.Params.Logprobs != sample.NoLogprobs {
			d.Logprobs = []step.Logprobs{scoreOf(id, r.Params.Logprobs)}
			d.Logprobs[0].Sampled.Logprob = -float32(i)
		}
		all += piece
		runes += utf8.RuneCountInString(piece)
		certain := len(all)
		if at := strings.Index(all, v.stop); v.stop != "" && at >= 0 {
			d.Finish, d.StopString, certain = sample.FinishStop, v.stop, at
			if v.include {
				certain += len(v.stop)
			}
		} else if i == len(v.pieces)-1 {
			if d.Finish = v.finish; v.finish == sample.FinishStop && v.token > 0 {
				d.StopToken = v.token
			}
		} else {
			for n := range v.stop {
				if strings.HasSuffix(all, v.stop[:n]) {
					certain = len(all) - n
				}
			}
		}
		d.Text = []byte(all[len(given):certain])
		given, d.TextEnds = all[:certain], []int{len(d.Text)}
		list = append(list, d)
		if d.Finish != sample.Unfinished {
			break
		}
	}
	return list
}

// divided are the tokens of a text: pieces of a few characters, some of the characters of several
// tokens, and tokens without a text between them.
func divided(rng *rand.Rand, text string) (pieces []string) {
	for len(text) > 0 {
		n := 0
		for range 1 + rng.IntN(1+rng.IntN(12)) {
			_, size := utf8.DecodeRuneInString(text[n:])
			n += size
		}
		if rng.IntN(8) == 0 || text[0] >= utf8.RuneSelf && rng.IntN(2) == 0 {
			pieces = append(pieces, "")
		}
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return pieces
}

// dialect is an API: how it is asked, and how its streams are added up.
type dialect struct {
	path, body string
	// stop is the field with stop strings, list says that they are a list. include says that it has
	// one for leaving them in the text.
	stop          string
	list, include bool
	// whole is what counts of an answer, fold the same of a stream.
	whole func(t *testing.T, v map[string]any) any
	fold  func(t *testing.T, body string) any
}

// choiceFolds adds up the chunks of choices: strings and lists are joined, what comes once stays.
func choiceFolds(t *testing.T, list []map[string]any, add func(sum, choice map[string]any)) any {
	sums := map[int]map[string]any{}
	var usage any
	for _, chunk := range list {
		if u := chunk["usage"]; u != nil {
			usage = u
		}
		for _, c := range at(t, chunk, "choices").([]any) {
			c := c.(map[string]any)
			i := int(c["index"].(float64))
			if sums[i] == nil {
				sums[i] = map[string]any{}
			}
			sum := sums[i]
			for _, key := range []string{"finish_reason", "stop_reason"} {
				if c[key] != nil {
					sum[key] = c[key]
				}
			}
			if lists, is := c["logprobs"].(map[string]any); is {
				for key, more := range lists {
					before, _ := sum[key].([]any)
					sum[key] = append(before, more.([]any)...)
				}
			}
			ids, _ := c["token_ids"].([]any)
			before, _ := sum["token_ids"].([]any)
			sum["token_ids"] = append(before, ids...)
			add(sum, c)
		}
	}
	return []any{sums, usage}
}

// choicesOf are those of a whole answer, in the same form.
func choicesOf(t *testing.T, v map[string]any, add func(sum, choice map[string]any)) any {
	return choiceFolds(t, []map[string]any{v}, add)
}

func dialects() map[string]dialect {
	text := func(m map[string]any, key string, v any) {
		before, _ := m[key].(string)
		if s, _ := v.(string); before+s != "" {
			m[key] = before + s
		}
	}
	completion := func(sum, c map[string]any) { text(sum, "text", c["text"]) }
	none := func(_, _ map[string]any) {}
	const flat = `"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]`
	response := func(t *testing.T, v map[string]any) any {
		return []any{v["output"], v["status"], v["usage"], v["incomplete_details"]}
	}
	responses := func(more string) dialect {
		return dialect{path: responses.ResponsesPath, body: hiInput + `,` + flat + more +
			`,"include":["message.output_text.logprobs"],"top_logprobs":2`,
			whole: response, fold: func(t *testing.T, body string) any {
				list := namedEvents(t, body)
				output, _ := foldResponse(t, list)
				end := at(t, list[len(list)-1], "response").(map[string]any)
				end["output"] = output
				return response(t, end)
			}}
	}
	return map[string]dialect{
		"completions": {path: completionsPath, stop: "stop", include: true,
			body:  `"prompt":"é func","echo":true,"n":2,"logprobs":2,"return_token_ids":true`,
			whole: func(t *testing.T, v map[string]any) any { return choicesOf(t, v, completion) },
			fold: func(t *testing.T, body string) any {
				return choiceFolds(t, doneChunks(t, body), completion)
			}},
		"chat": {path: openai.ChatPath, stop: "stop", include: true,
			body: askTools + `,"n":2,"logprobs":true,"top_logprobs":2,"return_token_ids":true`,
			whole: func(t *testing.T, v map[string]any) any {
				return choicesOf(t, v, func(sum, c map[string]any) {
					addMessage(t, sum,
						c["message"], text)
				})
			},
			fold: func(t *testing.T, body string) any {
				return choiceFolds(t, doneChunks(t, body), func(sum, c map[string]any) {
					addMessage(t, sum, c["delta"], text)
				})
			}},
		"tokens": {path: openai.TokensPath,
			body: `"token_ids":[1,2],"sampling_params":{"n":2,"logprobs":2}`,
			whole: func(t *testing.T, v map[string]any) any {
				v["usage"] = nil
				return choicesOf(t, v, none)
			},
			fold: func(t *testing.T, body string) any {
				list := doneChunks(t, body)
				for i := range list {
					list[i]["usage"] = nil
				}
				return choiceFolds(t, list, none)
			}},
		"responses":                   responses(""),
		"responses in the background": responses(`,"background":true,"store":true`),
		"messages": {path: anthropic.MessagesPath, stop: "stop_sequences", list: true,
			body: `"max_tokens":200,"messages":[{"role":"user","content":"hi"}],` +
				`"tools":[{"name":"f","input_schema":{"type":"object"}}]`,
			whole: func(t *testing.T, v map[string]any) any {
				return []any{v["content"], v["stop_reason"], v["stop_sequence"], v["usage"]}
			},
			fold: func(t *testing.T, body string) any {
				list := namedEvents(t, body)
				content, reason := foldMessage(t, list)
				if content == nil {
					content = []any{}
				}
				for _, e := range list {
					if e["type"] == "message_delta" {
						return []any{content, reason, at(t, e, "delta", "stop_sequence"),
							e["usage"]}
					}
				}
				return nil
			}},
	}
}

// addMessage adds a message, or a delta of one.
func addMessage(t *testing.T, sum map[string]any, m any, text func(map[string]any, string, any)) {
	message := m.(map[string]any)
	text(sum, "text", message["content"])
	text(sum, "reasoning", message["reasoning"])
	list, _ := message["tool_calls"].([]any)
	for i, c := range list {
		f := at(t, c, "function").(map[string]any)
		if index, is := c.(map[string]any)["index"]; is {
			i = int(index.(float64))
		}
		text(sum, fmt.Sprintf("name %d", i), f["name"])
		text(sum, fmt.Sprintf("arguments %d", i), f["arguments"])
	}
}

// doneChunks are the chunks of a stream that ends in [DONE].
func doneChunks(t *testing.T, body string) (list []map[string]any) {
	all := events(t, body)
	if all[len(all)-1] != "[DONE]" {
		t.Fatalf("stream ends in %q", all[len(all)-1])
	}
	for _, e := range all[:len(all)-1] {
		list = append(list, object(t, []byte(e)))
	}
	return list
}

// TestStreamsDoNotDependOnTiming has the same tokens reach every API in every grouping that a slow
// reader may find them in, ended in every way, read by parsers and not, with their
// log-probabilities, and wants each stream to add up to the answer without streaming.
func TestStreamsDoNotDependOnTiming(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	texts := []struct{ Out, P string }{
		{"", ""}, {"It is", ""}, {" It  is\n", ""}, {"日本, é and 日本語!", ""}, // 日本 is held back
		{"<think>\nwhy é\n</think>\n\nIt is 日本", "hermes"},
		{"<think>\nwhy</think>", "hermes"}, {"<think> only é", "hermes"},
		{"<think>a</think>so <tool_call>\n{\"name\":\"f\",\"arguments\":{\"é\":[1,2]}}</tool_call>",
			"hermes"},
		{"  so  \n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}</tool_call> \n<tool_call>" +
			"{\"name\":\"g\",\"arguments\":{\"x\":\"é\"}}</tool_call>\n and then", "hermes"},
	}
	written, some := writtenAnswers(t), 30
	if testing.Short() {
		some = 12
	}
	for range some {
		texts = append(texts, written[rng.IntN(len(written))])
	}
	var now spoken
	group := func(list []engine.Delta) (out []engine.Delta) { return list }
	play := func(_ int, r *engine.Request) script {
		list := now.deltas(r)
		if r.FinalOnly {
			return script{deltas: []engine.Delta{together(list)}}
		}
		return script{deltas: group(list)}
	}
	servers := map[string]*testServer{}
	serverOf := func(format string) *testServer {
		if format != "" && output.FormatNamed(format) == nil {
			format = "hermes"
		}
		if servers[format] == nil {
			servers[format] = newServer(t, hermesTemplate, keeping(t, store.Options{}),
				func(o *Options) {
					if format != "" {
						o.Config.Model.ToolCallParser = format
						o.Config.Model.ReasoningParser = reasoningWith(format)
					}
					o.Info.MaxModelLen, o.Config.Server.EnablePromptTokensDetails = 4096, true
					o.Engine = &fakeEngine{play: play}
				})
			t.Cleanup(servers[format].Close)
		}
		return servers[format]
	}
	cuts := func(list []engine.Delta) (out []engine.Delta) {
		for len(list) > 0 {
			n := 1 + rng.IntN(len(list))
			out, list = append(out, together(list[:n])), list[n:]
		}
		return out
	}
	all := func(list []engine.Delta) []engine.Delta { return []engine.Delta{together(list)} }
	single := func(list []engine.Delta) []engine.Delta { return list }
	for i, v := range texts {
		now = spoken{pieces: divided(rng, v.Out), token: -1}
		switch how := i % 4; {
		case v.Out == "" || how == 0: // the end of text, or a token that the request names
			now.finish, now.token = sample.FinishStop, int32(rng.IntN(2)*9)
			now.pieces = append(now.pieces, "")
		case how == 1:
			now.finish = sample.FinishLength
			now.pieces = now.pieces[:1+rng.IntN(len(now.pieces))]
		case how == 2:
			now.finish = sample.FinishRepetition
		default:
			now.finish = sample.FinishLength
			runes := []rune(v.Out)
			from := rng.IntN(len(runes))
			if now.stop = string(runes[from:min(len(runes), from+1+rng.IntN(4))]); i == how {
				now.stop = "日本語"
			}
			now.include = rng.IntN(2) == 0
		}
		s := serverOf(v.P)
		for name, d := range dialects() {
			body := d.body
			include := now.include
			if now.stop != "" && d.stop != "" {
				stop := marshal(t, now.stop)
				if d.list {
					stop = "[" + stop + "]"
				}
				body += `,"` + d.stop + `":` + stop
			}
			if now.include = include && d.include; now.include {
				body += `,"include_stop_str_in_output":true`
			}
			var whole map[string]any
			if rec := s.post(d.path, `{`+body+`}`); strings.Contains(body, `"background":true`) {
				group = all
				whole = settled(t, s, object(t, rec.Body.Bytes()))
			} else if whole = object(t, rec.Body.Bytes()); rec.Code != 200 {
				t.Fatalf("%s answered %s", name, rec.Body)
			}
			want := anyID.ReplaceAllString(marshal(t, d.whole(t, whole)), `"$1":"x"`)
			if d.path != anthropic.MessagesPath && d.path != responses.ResponsesPath {
				body += `,"stream_options":{"include_usage":true}`
			}
			for _, group = range []func([]engine.Delta) []engine.Delta{single, all, cuts, cuts} {
				rec := s.post(d.path, `{`+body+`,"stream":true}`)
				if rec.Code != 200 {
					t.Fatalf("%s answered %s", name, rec.Body)
				}
				got := anyID.ReplaceAllString(marshal(t, d.fold(t, rec.Body.String())), `"$1":"x"`)
				if got != want {
					t.Errorf("%s of %q %v, stop %q: the answer is\n%s, "+
						"and its events add up to\n%s",
						name, now.pieces, now.finish, now.stop, want, got)
				}
			}
			now.include = include
		}
	}
}

// settled waits for a response in the background.
func settled(t *testing.T, s *testServer, v map[string]any) map[string]any {
	id := v["id"].(string)
	// until its end, where it has events
	s.do("GET", responses.ResponsesPath+"/"+id+"?stream=true", "")
	for {
		rec := s.do("GET", responses.ResponsesPath+"/"+id, "")
		if rec.Code != 200 {
			t.Fatalf("GET of %s answered %s", id, rec.Body)
		}
		if v := object(t, rec.Body.Bytes()); v["status"] != "queued" &&
			v["status"] != "in_progress" {
			return v
		}
		time.Sleep(time.Millisecond)
	}
}
