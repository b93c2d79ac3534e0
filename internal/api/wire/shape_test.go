package wire

import (
	"encoding/json"
	"testing"
)

// TestRead: what a decoder asks for is what a request may have, and needs.
func TestRead(t *testing.T) {
	decode := func(f *Fields) *Error {
		f.OptInt("m")
		f.OptFloat("p")
		f.Boolean("b", false)
		f.Ranged("top", 1, 0, 9)
		f.Strings("words", f.Array("words"), 5, 5)
		f.Tokens("ids", 5, 5)
		f.Metadata()
		f.Value("any")
		f.Unsupported("never", "false")
		f.Refused("n")
		f.OptInt("n")
		f.Pop("renamed")
		if f.Text("model"); f.Members["text"] == nil && f.Members["messages"] == nil {
			f.Fail(BadRequest("text", "`text` or `messages`"))
		}
		if f.Members["messages"] != nil {
			f.Array("messages")
		} else {
			f.OptString("text")
		}
		return f.Err
	}
	got := Read(decode, Limits{}.WithDefaults(), `{"model":"a","text":"b","m":1}`,
		`{"model":"a","messages":[]}`)
	low, high := int64(0), int64(9)
	want := Shape{
		"m": {Type: "integer", Null: true}, "p": {Type: "number", Null: true},
		"b": {Type: "boolean"}, "top": {Type: "integer", Null: true, Low: &low, High: &high},
		"words":    {Type: "array", Items: "string", Null: true},
		"ids":      {Type: "array", Items: "integer", Null: true},
		"metadata": {Type: "object", Items: "string", Null: true}, "any": {Null: true},
		"model": {Type: "string", Null: true, Required: true},
		"text":  {Type: "string", Null: true}, "messages": {Type: "array", Null: true},
	}
	show := func(s Shape) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if show(got) != show(want) {
		t.Errorf("got  %s\nwant %s", show(got), show(want))
	}
	if one := Read(decode, Limits{}.WithDefaults(), `{"model":"a","text":"b"}`); !one["text"].Required {
		t.Error("a text that the only example needs is not required")
	}
}
