package wire

import (
	"encoding/json"
	"testing"
)

// TestTry: what a decoder accepts within a field is what it is described to have there.
func TestTry(t *testing.T) {
	decode := func(f *Fields) *Error {
		f.Fail(EachElement(f.Array("parts"), func(_ int, raw []byte) *Error {
			kind := TypeOf(raw)
			if raw[0] != '{' || kind != "text" && kind != "call" {
				return BadRequest("parts", "no part")
			}
			if kind == "text" && MemberOf(raw, "text", '"') == nil {
				return BadRequest("parts", "no text")
			}
			return nil
		}))
		if raw := f.Value("choice"); raw != nil && raw[0] != '{' &&
			string(raw) != `"auto"` && string(raw) != `"none"` {
			f.Fail(BadRequest("choice", "no choice"))
		}
		f.Fail(EachMember(f.Object("bias"), func(key string, raw []byte) *Error {
			_, bad := ParseFloat("bias", raw)
			return bad
		}))
		return f.Err
	}
	lim := Limits{}.WithDefaults()
	shape := Read(decode, lim, `{"parts":[]}`)
	shape.Try(decode, lim, `{"parts":[{"type":"text","text":"a"},{"type":"call","input":"a"}]}`,
		`{"choice":"auto"}`, `{"choice":"none"}`, `{"choice":{"name":"f"}}`, `{"bias":{"5":1.5}}`,
		`{"choice":7}`)
	got := map[string]*Kind{}
	for name, f := range shape {
		got[name] = f.Kind
	}
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const all = `"Types":{"array":true,"boolean":true,"integer":true,"null":true,"number":true,` +
		`"object":true,"string":true}`
	text := func(words string) string {
		return `{"Types":{"string":true},"Words":` + words + `,"Items":null,"Objects":null}`
	}
	plain := func(types string) string {
		return `{"Types":{` + types + `},"Words":null,"Items":null,"Objects":null}`
	}
	want := `{"bias":{"Types":{"null":true,"object":true},"Words":null,"Items":null,"Objects":[` +
		`{"Members":{},"Required":null,"Values":` + plain(`"integer":true,"number":true`) + `}]},` +
		`"choice":{"Types":{"null":true,"object":true,"string":true},"Words":["auto","none"],` +
		`"Items":null,"Objects":[{"Members":{"name":{` + all + `,"Words":null,"Items":null,` +
		`"Objects":null}},"Required":null,"Values":null}]},` +
		`"parts":{"Types":{"array":true,"null":true},"Words":null,"Items":{"Types":{` +
		`"object":true},"Words":null,"Items":null,"Objects":[{"Members":{"text":` +
		plain(`"string":true`) + `,"type":` + text(`["text"]`) + `},"Required":["text","type"],` +
		`"Values":null},{"Members":{"input":{` + all + `,"Words":null,"Items":null,` +
		`"Objects":null},"type":` + text(`["call"]`) + `},"Required":["type"],"Values":null}]},` +
		`"Objects":null}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}
