package api

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/text/output"
)

// namedEvents are the events of a stream whose lines have names, which their data repeat.
func namedEvents(t testing.TB, body string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		name, data, found := strings.Cut(strings.TrimPrefix(e, "event: "), "\ndata: ")
		var v map[string]any
		if err := json.Unmarshal([]byte(data), &v); !found || err != nil || v["type"] != name {
			t.Fatalf("bad event %q", e)
		}
		list = append(list, v)
	}
	return list
}

// foldResponse adds up the events of a response as clients do: the output, and the status. It holds
// what is said of their order.
func foldResponse(t *testing.T, list []map[string]any) (output []any, status any) {
	t.Helper()
	var open map[string]any
	content := func() map[string]any { return at(t, open, "content", 0).(map[string]any) }
	for i, e := range list {
		kind := strings.TrimPrefix(e["type"].(string), "response.")
		if e["sequence_number"] != float64(i) {
			t.Fatalf("event %d has the number %v", i, e["sequence_number"])
		}
		if index, is := e["output_index"]; is && kind != "output_item.added" {
			if open == nil || index != float64(len(output)) {
				t.Fatalf("%v while %v is open", e, open)
			}
			if id, is := e["item_id"]; is && id != open["id"] {
				t.Fatalf("%v while %v is open", e, open)
			}
		}
		switch kind {
		case "created", "queued", "in_progress":
			if i > 2 {
				t.Fatalf("%v as event %d", kind, i)
			}
		case "output_item.added":
			if open != nil || e["output_index"] != float64(len(output)) {
				t.Fatalf("%v while %v is open", e, open)
			}
			open = e["item"].(map[string]any)
		case "content_part.added":
			open["content"] = append(open["content"].([]any), e["part"])
		case "output_text.delta", "reasoning_text.delta":
			content()["text"] = content()["text"].(string) + e["delta"].(string)
			if more, is := e["logprobs"]; is {
				content()["logprobs"] = append(content()["logprobs"].([]any), more.([]any)...)
			}
		case "function_call_arguments.delta":
			open["arguments"] = open["arguments"].(string) + e["delta"].(string)
		case "output_text.done", "reasoning_text.done":
			if content()["text"] != e["text"] || marshal(t, content()["logprobs"]) != marshal(t,
				e["logprobs"]) {
				t.Fatalf("%v is done as %v", content(), e)
			}
		case "function_call_arguments.done":
			if open["arguments"] != e["arguments"] || open["name"] != e["name"] {
				t.Fatalf("%v is done as %v", open, e)
			}
		case "content_part.done":
			same(t, e["part"].(map[string]any), marshal(t, content()))
		case "output_item.done":
			open["status"] = e["item"].(map[string]any)["status"]
			same(t, e["item"].(map[string]any), marshal(t, open))
			output = append(output, open)
			open = nil
		case "completed", "incomplete":
			if open != nil || i != len(list)-1 {
				t.Fatalf("%v is not the end", kind)
			}
			if whole := at(t, e, "response", "output"); marshal(t, whole) != marshal(t, output) {
				t.Fatalf("the output is\n%v\nand the events add up to\n%v", whole, output)
			}
			return output, at(t, e, "response", "status")
		default:
			t.Fatalf("event %v", e)
		}
	}
	t.Fatal("the stream has no end")
	return nil, nil
}

// foldMessage adds up the events of a message as clients do.
func foldMessage(t *testing.T, list []map[string]any) (content []any, reason any) {
	t.Helper()
	var open map[string]any
	input := ""
	for i, e := range list {
		if index, is := e["index"]; is && index != float64(len(content)) {
			t.Fatalf("%v after %d blocks", e, len(content))
		}
		switch e["type"] {
		case "message_start":
			if i > 0 {
				t.Fatalf("begins as event %d", i)
			}
		case "content_block_start":
			open, input = e["content_block"].(map[string]any), ""
		case "content_block_delta":
			d := e["delta"].(map[string]any)
			switch d["type"] {
			case "text_delta":
				open["text"] = open["text"].(string) + d["text"].(string)
			case "thinking_delta":
				open["thinking"] = open["thinking"].(string) + d["thinking"].(string)
			case "signature_delta":
				open["signature"] = open["signature"].(string) + d["signature"].(string)
			case "input_json_delta":
				input += d["partial_json"].(string)
			}
		case "content_block_stop":
			var v map[string]any
			if open["type"] == "tool_use" && json.Unmarshal([]byte(input), &v) == nil && v != nil {
				open["input"] = v
			}
			content = append(content, open)
			open = nil
		case "message_delta":
			reason = at(t, e, "delta", "stop_reason")
		case "message_stop":
			if open != nil || i != len(list)-1 {
				t.Fatal("a message does not end with its end")
			}
			return content, reason
		}
	}
	t.Fatal("the stream has no end")
	return nil, nil
}

// reasoningWith is the parser of reasoning for a format whose family has channels, else that of the
// answers in testdata.
func reasoningWith(format string) string {
	switch format {
	case "openai":
		return "openai_gptoss"
	case "gemma4", "cohere_command3", "cohere_command4":
		return format
	}
	return "qwen3"
}

// writtenAnswers are answers of models of every family, and the names of their formats.
func writtenAnswers(t *testing.T) (list []struct{ Out, P string }) {
	t.Helper()
	files, err := filepath.Glob("../text/output/testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no answers: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			var v struct{ Out, P string }
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatal(err)
			}
			list = append(list, v)
		}
	}
	return list
}

var anyID = regexp.MustCompile(`"(id|call_id)":"[^"]*"`)

// TestStreamsAddUp asks three routes for answers of every family, at once and cut in any way, and
// wants the same message from each stream as without.
func TestStreamsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var texts []string
	finish := sample.FinishStop
	servers := map[string]*testServer{}
	serverOf := func(format string) *testServer {
		if output.FormatNamed(format) == nil {
			format = "hermes"
		}
		if servers[format] == nil {
			servers[format] = newServer(t, hermesTemplate, keeping(t, store.Options{}),
				func(o *Options) {
					o.Config.Model.ToolCallParser = format
					o.Config.Model.ReasoningParser = reasoningWith(format)
					o.Info.MaxModelLen = 2048
					o.Engine = &fakeEngine{play: func(_ int, r *engine.Request) script {
						return script{deltas: say(r, make([]int32, len(texts)), texts, finish)}
					}}
				})
			t.Cleanup(servers[format].Close)
		}
		return servers[format]
	}
	cut := func(text string) (pieces []string) {
		for len(text) > 0 {
			n := 1 + rng.IntN(1+rng.IntN(40))
			for n < len(text) && !utf8.RuneStart(text[n]) {
				n++
			}
			n = min(n, len(text))
			pieces, text = append(pieces, text[:n]), text[n:]
		}
		return pieces
	}
	plain := func(v any) string { return anyID.ReplaceAllString(marshal(t, v), `"$1":"x"`) }
	const flat = `"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]`
	const message = `"max_tokens":200,"messages":[{"role":"user","content":"hi"}],` +
		`"tools":[{"name":"f","input_schema":{"type":"object"}}]`
	for _, v := range writtenAnswers(t) {
		s := serverOf(v.P)
		text := v.Out
		if finish = sample.FinishStop; rng.IntN(3) == 0 && len(text) > 0 {
			finish = sample.FinishLength
			text = strings.ToValidUTF8(text[:rng.IntN(len(text))], "")
		}
		texts = []string{text}
		if text == "" {
			texts = []string{""}
		}
		response := s.ok(t, responses.ResponsesPath, `{`+hiInput+`,`+flat+`}`)
		wanted := s.ok(t, anthropic.MessagesPath, `{`+message+`}`)
		whole := s.ok(t, openai.ChatPath, `{`+askTools+`}`)
		rounds := 3
		if testing.Short() {
			rounds = 2
		}
		for range rounds {
			if text != "" {
				texts = cut(text)
			}
			output, status := foldResponse(t, namedEvents(t,
				s.post(responses.ResponsesPath,
					`{`+hiInput+`,`+flat+`,"stream":true}`).Body.String()))
			if plain(output) != plain(response["output"]) || status != response["status"] {
				t.Errorf("%s %q in %q: the response is\n%s, and its events add up to\n%s", v.P,
					text, texts, plain(response["output"]), plain(output))
			}
			content, reason := foldMessage(t, namedEvents(t,
				s.post(anthropic.MessagesPath, `{`+message+`,"stream":true}`).Body.String()))
			if content == nil {
				content = []any{}
			}
			if plain(content) != plain(wanted["content"]) || reason != wanted["stop_reason"] {
				t.Errorf("%s %q in %q: the message is\n%s %v, and its events add up to\n%s %v", v.P,
					text, texts, plain(wanted["content"]), wanted["stop_reason"], plain(content),
					reason)
			}
			got, why := rejoined(t, chunks(t, s.post(openai.ChatPath,
				`{`+askTools+`,"stream":true}`)))
			want := at(t, whole, "choices", 0, "message").(map[string]any)
			for _, key := range []string{"content", "reasoning"} {
				if g, _ := got[key].(string); want[key] != nil && g != want[key] ||
					want[key] == nil && g != "" {
					t.Errorf("%s %q in %q: %s is %v, and streamed %v", v.P, text, texts, key,
						want[key], got[key])
				}
			}
			calls := func(m map[string]any) string {
				list, _ := m["tool_calls"].([]any)
				for _, c := range list {
					delete(c.(map[string]any), "id")
				}
				return marshal(t, list)
			}
			if a, b := calls(want), calls(got); a != b || why != at(t, whole, "choices", 0,
				"finish_reason") {
				t.Errorf("%s %q in %q: calls are %s, and streamed %s", v.P, text, texts, a, b)
			}
		}
	}
}
