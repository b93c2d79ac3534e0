package generate

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// FuzzMask: masking and restoring is the identity, keys and structure stay, and no special text is
// left.
func FuzzMask(f *testing.F) {
	specials := newSpecialTexts([]string{"<|a|>", "<|a|>b", "<s>", "</s>", "é"})
	for _, s := range []string{"", "x", "<|a|>", "<|a|>b<s>", "<<s>>", "\u00e9<|a|",
		"\ue000\ue001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		m := newMask()
		masked := m.text(specials, text)
		if got := m.restore(masked); got != text {
			t.Fatalf("%q became %q", text, got)
		}
		for _, special := range []string{"<|a|>", "<s>", "</s>", "é"} {
			if strings.Contains(masked, special) {
				t.Fatalf("%q is left in %q", special, masked)
			}
		}
		raw := []byte(`{"<s>":[` + quoted(text) + `,{"k":` + quoted(text) + `}]}`)
		m = newMask()
		out := m.json(specials, raw)
		var got, want any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if err := json.Unmarshal([]byte(m.restore(string(out))), &want); err == nil {
			list := got.(map[string]any)["<s>"].([]any)
			if m.restore(list[0].(string)) != text {
				t.Fatalf("%q became %q", text, list[0])
			}
		}
	})
}

func TestMaskCutPlaceholder(t *testing.T) {
	m := newMask()
	masked := m.text(newSpecialTexts([]string{"<s>"}), "a<s>b")
	m.split(masked[:len(masked)-4], func(piece string, special bool) {
		if special || !strings.HasPrefix(piece, "a") {
			t.Errorf("piece %q, special %v", piece, special)
		}
	})
	m.split(m.open+"999"+placeholderEnd, func(p string, special bool) {
		if special {
			t.Error("a number out of range was taken")
		}
	})
}

// TestKeyOrderReachesTheTemplate: masking must not reorder.
func TestKeyOrderReachesTheTemplate(t *testing.T) {
	m := newMask()
	raw := m.json(newSpecialTexts([]string{"<s>"}),
		[]byte(`{"z":"<s>","a":1,"m":{"y":"q","b":"<s>"}}`))
	v, err := chattemplate.FromJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	top, _ := v.AsMap()
	if !reflect.DeepEqual(top.Keys(), []string{"z", "a", "m"}) {
		t.Errorf("keys %v", top.Keys())
	}
}

func quoted(s string) string { return string(wire.AppendString(nil, s)) }
