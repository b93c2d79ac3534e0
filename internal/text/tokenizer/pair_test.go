package tokenizer

import (
	"fmt"
	"slices"
	"testing"
)

// TestPairs are prompts of two texts as Hugging Face's tokenizers make them.
func TestPairs(t *testing.T) {
	const words = `"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"<s>":3,"</s>":4},"merges":[]}`
	const ends = `"sep":["</s>",4],"cls":["<s>",3]`
	for _, c := range []struct{ name, processor, single, pair, plain string }{
		{"none", `null`, "[0 0 1]", "[0 0 1 2]", "[0 0 1 2]"},
		{"ByteLevel", `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`,
			"[0 0 1]", "[0 0 1 2]", "[0 0 1 2]"},
		{"Bert", `{"type":"BertProcessing",` + ends + `}`, "[3 0 0 1 4]", "[3 0 0 1 4 2 4]",
			"[0 0 1 2]"},
		{"Roberta", `{"type":"RobertaProcessing",` + ends + `}`, "[3 0 0 1 4]", "[3 0 0 1 4 4 2 4]",
			"[0 0 1 2]"},
		{"template", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
			{"Sequence":{"id":"A","type_id":0}}],"pair":[{"SpecialToken":{"id":"<s>","type_id":0}},
			{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<s>","type_id":1}},
			{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}}`,
			"[3 0 0 1]", "[3 0 0 1 3 2]", "[0 0 1 2]"},
	} {
		tok, err := Parse([]byte(`{"post_processor":`+c.processor+`,`+words+`}`), nil)
		if err != nil {
			t.Fatal(c.name, err)
		}
		if got := fmt.Sprint(tok.Encode("aab", true)); got != c.single {
			t.Errorf("%s: one text is %s, want %s", c.name, got, c.single)
		}
		for special, want := range map[bool]string{true: c.pair, false: c.plain} {
			got, err := tok.EncodeTexts(nil, []string{"aab", "c"}, special, nil)
			if err != nil || fmt.Sprint(got.IDs) != want || got.IDs[got.Second] != 2 || got.Short {
				t.Errorf("%s: two texts are %+v, %v, want %s", c.name, got, err, want)
			}
		}
	}
	tok, err := Parse([]byte(`{"post_processor":{"type":"BertProcessing",`+ends+`},`+words+`}`),
		nil)
	if err != nil {
		t.Fatal(err)
	}
	one, two := []string{"aab"}, []string{"aab", "c"}
	for _, c := range []struct {
		texts []string
		cut   Cut
		want  []int32
		short bool
	}{
		{two, Cut{Most: 7}, []int32{3, 0, 0, 1, 4, 2, 4}, false},
		{two, Cut{Most: 6}, []int32{3, 0, 1, 4, 2, 4}, true},
		{two, Cut{Most: 6, Right: true}, []int32{3, 0, 0, 4, 2, 4}, true},
		{two, Cut{Most: 4}, []int32{3, 1, 4, 4}, true},
		{two, Cut{Most: 3}, []int32{3, 4, 4}, true},
		{two, Cut{Most: 2}, nil, true},
		{one, Cut{Most: 5}, []int32{3, 0, 0, 1, 4}, false},
		{one, Cut{Most: 4}, []int32{3, 0, 1, 4}, true},
		{one, Cut{Most: 4, Right: true}, []int32{3, 0, 0, 4}, true},
		{one, Cut{Most: 2, Right: true}, []int32{3, 4}, true},
		{one, Cut{Most: 1}, nil, true},
	} {
		if got, err := tok.EncodeTexts(nil, c.texts, true, &c.cut); err != nil ||
			!slices.Equal(got.IDs, c.want) || got.Short != c.short {
			t.Errorf("%q, %+v: %+v, %v, want %v", c.texts, c.cut, got, err, c.want)
		}
	}
	_, err = Parse([]byte(
		`{"post_processor":{"type":"TemplateProcessing","single":[],"pair":[{"Sequence":{"id":"C"}}],`+
			`"special_tokens":{}},`+words+`}`), nil)
	if err == nil {
		t.Error("a template of a third text is taken")
	}
	stopped := fmt.Errorf("stopped")
	if _, err := tok.EncodeTexts(func() error { return stopped },
		[]string{string(make([]byte, 1<<20)), "b"}, true, nil); err != stopped {
		t.Errorf("%v", err)
	}
}

// TestLongestFirst: a text that is cut is no shorter than the other but for one token.
func TestLongestFirst(t *testing.T) {
	for a := range 12 {
		for b := range 12 {
			for room := range 24 {
				x, y := longestFirst(a, b, room)
				if x+y != min(a+b, room) || x > a || y > b || x < a && x < y-1 || y < b && y < x-1 {
					t.Fatalf("%d and %d in %d: %d and %d", a, b, room, x, y)
				}
			}
		}
	}
}
