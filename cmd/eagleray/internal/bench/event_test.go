package bench

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseEvent(t *testing.T) {
	for _, tt := range []struct {
		raw  string
		want event
	}{
		{`{"id":"x","choices":[{"index":0,"text":" Go","logprobs":null,"finish_reason":null}]}`,
			event{piece: true, text: " Go"}},
		{`{"choices":[{"text":"","finish_reason":null}]}`, event{piece: true}},
		{`{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, event{}},
		{`{"choices":[{"delta":{"role":"assistant","content":null}}]}`, event{}},
		{`{"choices":[{"delta":{"role":"assistant","content":"Hi"}}]}`, event{piece: true,
			text: "Hi"}},
		{`{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}`,
			event{piece: true}},
		{`{"choices":[{"delta":{"content":"a\n\"\u00e9\ud83d\ude00"}}]}`, event{piece: true,
			text: "a\n\"é😀"}},
		{`{"choices":[{"delta":{}, "finish_reason":"length"}]}`, event{piece: true}},
		{`{"choices":[{"text":"a"},{"text":"b"}]}`, event{piece: true, text: "a"}},
		{`{"choices":[],"usage":{"prompt_tokens":3,"total_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":1}}}`, event{usage: true, prompt: 3, output: 7}},
		{`{"choices":[{"text":"x"}],"usage":null}`, event{piece: true, text: "x"}},
		{` { "choices" : [ { "text" : "x" , "nested" : [ { "a" : [ ] } , "]}" ] } ] } `,
			event{piece: true, text: "x"}},
		{`{"error":{"message":"no \"such\" model","code":404}}`, event{failure: `no "such" model`}},
		{`{"error":null,"choices":[]}`, event{}},
		{`{"error":{"code":1}}`, event{failure: "unknown error"}},
		{`{}`, event{}},
	} {
		got, err := parseEvent([]byte(tt.raw))
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, error %v; want %+v", tt.raw, got, err, tt.want)
		}
	}
	for _, raw := range []string{``, `[]`, `{`, `{"choices":[`, `{"choices":[{"text":"a`,
		`{"a":1}x`, `{"choices":{}}`, `{"usage":{"prompt_tokens":1.5}}`,
		`{"usage":{"prompt_tokens":99999999999999999999}}`, `{"choices":[{"text":"\x"}]}`, `{"a"}`,
		`{"a":}`, `nonsense`} {
		if e, err := parseEvent([]byte(raw)); err == nil {
			t.Errorf("%s was read as %+v", raw, e)
		}
	}
}

// What encoding/json reads as an event is read the same; nothing else makes the scanner stumble.
func FuzzParseEvent(f *testing.F) {
	for _, s := range []string{`{"choices":[{"text":"a\u00e9"}]}`,
		`{"choices":[{"delta":{"role":"r","content":"c"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
		`{"error":{"message":"m"}}`, `{"x":[[[[{"y":"}"}]]]],"choices":[]}`,
		`{"choices":[{"text":"\ud800"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := parseEvent(raw)
		var want struct {
			Choices []struct {
				Text  *string
				Delta *struct{ Content *string }
			}
			Usage *struct {
				Prompt int `json:"prompt_tokens"`
				Output int `json:"completion_tokens"`
			}
			Error *struct{ Message *string }
		}
		// encoding/json also takes keys in another case, and the last of several; those are not
		// events.
		if json.Unmarshal(raw, &want) != nil || !strings.HasPrefix(strings.TrimSpace(string(raw)),
			"{") || strings.Contains(string(raw), `\`) ||
			strings.ToLower(string(raw)) != string(raw) || repeated(string(raw)) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		text := ""
		if len(want.Choices) > 0 {
			if c := want.Choices[0]; c.Text != nil {
				text = *c.Text
			} else if c.Delta != nil && c.Delta.Content != nil {
				text = *c.Delta.Content
			}
		}
		if len(want.Choices) > 0 && (want.Choices[0].Text == nil || want.Choices[0].Delta == nil) &&
			strings.ToValidUTF8(e.text, "\uFFFD") != text {
			t.Errorf("%s: text %q, want %q", raw, e.text, text)
		}
		if u := want.Usage; u != nil && (e.prompt != u.Prompt || e.output != u.Output) {
			t.Errorf("%s: usage %+v, want %+v", raw, e, *u)
		}
		if (want.Error != nil) != (e.failure != "") && (want.Error == nil ||
			want.Error.Message == nil || *want.Error.Message != "") {
			t.Errorf("%s: failure %q", raw, e.failure)
		}
	})
}

// repeated tells whether a key that matters is there more than once.
func repeated(s string) bool {
	for _, key := range []string{"choices", "text", "delta", "content", "usage", "error", "message",
		"prompt_tokens", "completion_tokens"} {
		if strings.Count(s, `"`+key+`"`) > 1 {
			return true
		}
	}
	return false
}

func BenchmarkParseEvent(b *testing.B) {
	raw := []byte(
		`{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"go-std-tiny","choices":[{"index":0,"text":" returns","logprobs":null,"finish_reason":null,"stop_reason":null}]}`)
	b.Run("scanner", func(b *testing.B) {
		for b.Loop() {
			if _, err := parseEvent(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		for b.Loop() {
			var v struct{ Choices []struct{ Text string } }
			if err := json.Unmarshal(raw, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}
