package generate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
	"github.com/eagleray/eagleray/internal/text/output"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// TestTokenizingEnds with its context on every way to it.
func TestTokenizingEnds(t *testing.T) {
	tok, err := tokenizer.Load("../../../testdata/models/go-std-tiny")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a ", 1<<16)
	s := &Service{maxTokenBytes: 1, Model: Model{Info: &open.Info{Tokenizer: tok,
		Defaults: sample.Defaults{MaxModelLen: len(text)}}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, bad := s.Tokenize(ctx, &Sampling{}, "prompt", RawPrompt{Text: text,
		IsText: true}); bad == nil || bad.Status != wire.StatusClientClosed {
		t.Errorf("a prompt: %v", bad)
	}
	for _, m := range []*mask{newMask(), {open: "o", texts: []string{"t"}}} {
		if _, err := s.encodeMasked(ctx, m, text, true); !errors.Is(err, context.Canceled) {
			t.Errorf("a conversation: %v", err)
		}
	}
}

// TestCutLeavesSpecialTokens: a text that is cut keeps the tokens that the tokenizer puts around
// it, as in transformers: models pool them.
func TestCutLeavesSpecialTokens(t *testing.T) {
	tok, err := tokenizer.Parse([]byte(`{"post_processor":{"type":"BertProcessing",
		"sep":["</s>",4],"cls":["<s>",3]},"model":{"type":"BPE","merges":[],
		"vocab":{"a":0,"b":1,"c":2,"<s>":3,"</s>":4}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{maxTokenBytes: 4, Model: Model{Info: &open.Info{Tokenizer: tok,
		Defaults: sample.Defaults{MaxModelLen: 9}}}}
	most := int64(4)
	for right, want := range map[bool]string{true: "<s> a b </s>", false: "<s> b c </s>"} {
		r := &Sampling{AddSpecial: true, Echo: true, TruncateRight: right, truncate: &most}
		p, bad := s.Tokenize(t.Context(), r, "input", RawPrompt{Text: "abc", IsText: true})
		if bad != nil || tok.Decode(p.Prompt, false) != want || p.Text != want {
			t.Errorf("right %t: %v, %q, %v, want %q", right, p.Prompt, p.Text, bad, want)
		}
	}
	most = 5
	p, bad := s.Tokenize(t.Context(), &Sampling{AddSpecial: true, Echo: true, truncate: &most},
		"input", RawPrompt{Text: "abc", IsText: true})
	if bad != nil || len(p.Prompt) != 5 || p.Text != "abc" {
		t.Errorf("whole: %v, %q, %v", p.Prompt, p.Text, bad)
	}
	p, bad = s.Tokenize(t.Context(), &Sampling{AddSpecial: true}, "input", RawPrompt{IsText: true})
	if bad != nil || len(p.Prompt) != 2 {
		t.Errorf("an empty text: %v, %v", p.Prompt, bad)
	}
}

// TestSpecialTagsAreRead: tags that are special tokens reach the parser, and other special tokens
// do not.
func TestSpecialTagsAreRead(t *testing.T) {
	o := output.Options{Tools: output.FormatNamed("hermes")}
	s := &Service{specials: newSpecialTexts([]string{"<|im_end|>"})}
	if s.hides(&o) {
		t.Error("the tags of Hermes are no special tokens of this model")
	}
	s.specials = newSpecialTexts([]string{"<tool_call>", "<|im_end|>"})
	if list := s.dropped(&o); !s.hides(&o) || len(list) != 1 || list[0] != "<|im_end|>" {
		t.Errorf("drops %q", list)
	}
}

// TestToolTemplate renders conversations with tools alone, and its calls are what is looked for.
func TestToolTemplate(t *testing.T) {
	parse := func(source string) *chattemplate.Template {
		p, err := chattemplate.Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	usual, tool := parse("{{ messages }}"), parse("<tool_call>{{ tools }}</tool_call>")
	for _, c := range []struct{ usual, tool, plain, with *chattemplate.Template }{
		{usual, tool, usual, tool}, {usual, nil, usual, usual}, {nil, tool, nil, tool},
	} {
		m := Model{Info: &open.Info{Template: c.usual, ToolTemplate: c.tool}, flags: &config.Model{
			ToolCallParser: config.AutoParser, ReasoningParser: config.AutoParser}}
		m.readers()
		if (m.format != nil) != (c.tool != nil) {
			t.Errorf("%v: calls are read as %v", c, m.format)
		}
		s := &Service{Model: m}
		plain, bad := s.templateFor(&Conversation{})
		with, _ := s.templateFor(&Conversation{Tools: []Tool{}})
		if plain != c.plain || with != c.with || (bad != nil) != (c.plain == nil) {
			t.Errorf("%v: %v, %v, with tools %v", c, plain, bad, with)
		}
	}
}
