package jsonx

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// skip reads a text as any value.
func skip(text string, lim Limits) error {
	return Read([]byte(text), lim, (*Reader).Skip)
}

// members reads a text as an object, member by member.
func members(text string, lim Limits) (list []string, err error) {
	err = Read([]byte(text), lim, func(r *Reader) error {
		return r.Object(func(name string) error {
			value, err := r.Raw()
			list = append(list, name+"="+string(value))
			return err
		})
	})
	return list, err
}

func TestFaults(t *testing.T) {
	for text, want := range map[string]string{
		``:                         "unexpected end at byte 0",
		` `:                        "unexpected end at byte 1",
		`{`:                        "expected a key in quotes at byte 1",
		`{"a`:                      "unexpected end in a string at byte 3",
		`{"a\`:                     "unexpected end in a string at byte 3",
		`{"a\u00`:                  `\u needs four hexadecimal digits at byte 3`,
		`{"a"`:                     "expected : after a key at byte 4",
		`{"a" 1}`:                  "expected : after a key at byte 5",
		`{"a",1}`:                  "expected : after a key at byte 5",
		`{"a":`:                    "unexpected end at byte 5",
		`{"a":}`:                   "unexpected character '}' at byte 5",
		`{"a":1`:                   "expected , or } in an object at byte 6",
		`{"a":1]`:                  "expected , or } in an object at byte 6",
		`{"a":1,}`:                 "expected a key in quotes after a comma at byte 7",
		`{"a":1,,"b":2}`:           "expected a key in quotes after a comma at byte 7",
		`{,}`:                      "expected a key in quotes at byte 2",
		`{1:2}`:                    "expected a key in quotes at byte 1",
		`{'a':1}`:                  "expected a key in quotes at byte 1",
		`{"a":[1,]}`:               "unexpected character ']' at byte 8",
		`{"a":[,1]}`:               "unexpected character ',' at byte 7",
		`{"a":[1`:                  "expected , or ] in an array at byte 7",
		`{"a":[1}`:                 "expected , or ] in an array at byte 7",
		`{"a":[1 2]}`:              "expected , or ] in an array at byte 8",
		`{"a":tru}`:                "unexpected character 't' at byte 5",
		`{"a":+1}`:                 "unexpected character '+' at byte 5",
		"{\"a\":\x00}":             `unexpected character '\x00' at byte 5`,
		`{"a":NaN}`:                "NaN is not a JSON number at byte 5",
		`{"a":Infinity}`:           "Infinity is not a JSON number at byte 5",
		`{"a":[-Infinity]}`:        "-Infinity is not a JSON number at byte 6",
		`{"a":-}`:                  "expected a digit at byte 6",
		`{"a":1.}`:                 "expected a digit at byte 7",
		`{"a":1e+}`:                "expected a digit at byte 8",
		`{"a":01}`:                 "expected , or } in an object at byte 6",
		`{"a":"\x41"}`:             `unknown escape \x at byte 6`,
		`{"a":"b\u12"}`:            `\u needs four hexadecimal digits at byte 7`,
		`{"a":"\u12g4"}`:           `\u needs four hexadecimal digits at byte 6`,
		`{"a":"\ud800"}`:           `lone surrogate \ud800 at byte 6`,
		`{"a":"\udc00 x"}`:         `lone surrogate \udc00 at byte 6`,
		`{"a":"\ud800\ud800"}`:     `lone surrogate \ud800 at byte 6`,
		`{"a":"\ud800\u12"}`:       `lone surrogate \ud800 at byte 6`,
		"{\"a\":\"x\xff\"}":        "invalid UTF-8 in the string at byte 5",
		"{\"a\xff\":1}":            "invalid UTF-8 in the string at byte 1",
		"{\"a\":\"x\xc0\xaf\"}":    "invalid UTF-8 in the string at byte 5",
		"{\"a\":\"\xed\xa0\x80\"}": "invalid UTF-8 in the string at byte 5",
		"{\"a\":\"x\n\"}":          "control character 0x0a in a string at byte 7",
		`{"a":1,"a":2}`:            `duplicate key "a" at byte 7`,
		`{"a":1, "\u0061":2}`:      `duplicate key "a" at byte 8`,
		`{"b":[{"a":1,"a":2}]}`:    `duplicate key "a" at byte 13`,
		`{"a/b~":1,"a/b~":2}`:      `duplicate key "a/b~" at byte 10`,
		`{} {}`:                    "data after the JSON object at byte 3",
		"{}\x00":                   "data after the JSON object at byte 2",
		`{},`:                      "data after the JSON object at byte 2",
		"\xef\xbb\xbf{}":           `unexpected character 'ï' at byte 0`,
	} {
		if err := skip(text, Limits{}); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
		if len(text) == 0 || text[0] != '{' {
			continue
		}
		if _, err := members(text, Limits{}); err == nil || err.Error() != want {
			t.Errorf("%q by members: error %v, want %s", text, err, want)
		}
	}
}

func TestLimits(t *testing.T) {
	lim := Limits{Bytes: 60, Depth: 3, Members: 2}
	for text, want := range map[string]string{
		`{"a":[[]],"b":{"c":{},"d":[1,2,3]}}`:       "",
		`{"a":[[[]]]}`:                              "nested deeper than 3 levels at byte ",
		`{"a":{"b":{"c":{}}}}`:                      "nested deeper than 3 levels at byte ",
		`{"a":1,"b":2,"c":3}`:                       "more than 2 members in one object at byte ",
		`{"m":[{"a":1,"b":2,"c":3}]}`:               "more than 2 members in one object at byte ",
		`{"m":["` + strings.Repeat("x", 60) + `"]}`: "JSON text of 70 bytes is above the limit of 60",
	} {
		for _, read := range []func() error{
			func() error { return skip(text, lim) },
			func() error { _, err := members(text, lim); return err },
		} {
			if err := read(); (err == nil) != (want == "") ||
				err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: error %v, want %q", text, err, want)
			}
		}
	}
	deep := strings.Repeat("[", 1e6)
	if err := skip(deep, Limits{}); err == nil ||
		!strings.Contains(err.Error(), "deeper than 128 levels") {
		t.Errorf("without limits the error is %v", err)
	}
	if err := skip(deep, Limits{Depth: 1e6}); err == nil ||
		!strings.Contains(err.Error(), "depth") {
		t.Errorf("beyond the library's depth the error is %v", err)
	}
}

// TestDuplicates has few names, which are compared one by one, and many, which go into a table.
func TestDuplicates(t *testing.T) {
	for _, n := range []int{2, 16, 100} {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"k%s":1,`, strings.Repeat("x", i))
		}
		text := "{" + b.String() + b.String()[:strings.Index(b.String(), ",")] + "}"
		if err := skip(text, Limits{}); err == nil || !strings.Contains(err.Error(), `duplicate key "k"`) {
			t.Errorf("%d names: error %v", n, err)
		}
		if err := skip(text, Limits{Duplicates: true}); err != nil {
			t.Errorf("%d names with duplicates: %v", n, err)
		}
	}
}

func TestKinds(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:      "expected '{', got '[' at byte 0",
		` "a"`:    "expected '{', got '\"' at byte 1",
		`{"a":1}`: "expected '[', got '1' at byte 5",
		`{"b":1}`: "expected a string, got '1' at byte 5",
		`{"c":t}`: "expected a number, got 't' at byte 5",
		`{"c":}`:  "unexpected character '}' at byte 5",
	} {
		err := Read([]byte(text), Limits{}, func(r *Reader) error {
			return r.Object(func(name string) (err error) {
				switch name {
				case "a":
					return r.Array(func(int) error { return r.Skip() })
				case "b":
					_, err = r.Text()
				case "c":
					_, err = r.Natural(1)
				}
				return err
			})
		})
		if err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
	stop := errors.New("stop")
	if err := Read([]byte(`[1,2]`), Limits{}, func(r *Reader) error {
		return r.Array(func(i int) error {
			if i == 1 {
				return stop
			}
			return r.Skip()
		})
	}); err != stop {
		t.Errorf("the caller's error came back as %v", err)
	}
}

func TestNatural(t *testing.T) {
	read := func(text string, most int64) (n int64, err error) {
		err = Read([]byte(text), Limits{}, func(r *Reader) (err error) {
			n, err = r.Natural(most)
			return err
		})
		return n, err
	}
	for text, most := range map[string]int64{
		"0": 0, "7": 7, " 41 ": 41, "9223372036854775807": math.MaxInt64,
	} {
		if n, err := read(text, most); err != nil || n != most {
			t.Errorf("%s: %d, %v", text, n, err)
		}
		if _, err := read(text, most-1); err == nil {
			t.Errorf("%s is above %d and was read", text, most-1)
		}
	}
	for _, text := range []string{"-1", "-0", "1.0", "1e0", "9223372036854775808", "99999999999999999999999", `"1"`, "true"} {
		if n, err := read(text, math.MaxInt64); err == nil {
			t.Errorf("%s was read as %d", text, n)
		}
	}
}

func TestChecked(t *testing.T) {
	const text = ` {"z" : [ 1 , -2.5e+3,true,false,null,{} ,[]],"a\"":"\ud83d\ude00\n\/","m":{"z":["日本",{"k":"v"}]}}`
	var got []string
	for name, value := range Members([]byte(text)) {
		got = append(got, name+"="+string(value))
	}
	want := []string{`z=[ 1 , -2.5e+3,true,false,null,{} ,[]]`, `a"="\ud83d\ude00\n\/"`, `m={"z":["日本",{"k":"v"}]}`}
	if !slices.Equal(got, want) {
		t.Errorf("members %q", got)
	}
	got = nil
	for i, value := range Elements([]byte(want[0][2:])) {
		got = append(got, fmt.Sprintf("%d %s", i, value))
	}
	want = []string{"0 1", "1 -2.5e+3", "2 true", "3 false", "4 null", "5 {}", "6 []"}
	if !slices.Equal(got, want) {
		t.Errorf("elements %q", got)
	}
	got = nil
	for at, quoted := range Strings([]byte(text)) {
		if text[at:at+len(quoted)] != string(quoted) {
			t.Errorf("%s is not at %d", quoted, at)
		}
		got = append(got, Unquote(quoted))
	}
	if !slices.Equal(got, []string{"😀\n/", "日本", "v"}) {
		t.Errorf("strings %q", got)
	}
	for range Members([]byte(`{}`)) {
		t.Error("a member of {}")
	}
	for range Elements([]byte(`[]`)) {
		t.Error("an element of []")
	}
	for i := range Elements([]byte(`[1,2,3]`)) {
		if i == 1 {
			break
		}
	}
}

// FuzzRead holds what is accepted against encoding/json: it is valid, has the same members and
// means the same, and what is refused is invalid, has a duplicate or text that encoding/json would
// repair.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":"\u00e9\ud83d\ude00","b":[1,{"c":null}]}`, `{"a":1e400}`, "{\"a\":\"\xff\"}",
		`{"a":1,"a":2}`, `{"a":[[[[[[[[[[]]]]]]]]]]}`, `{"x":-0.0E-1}`, `{"a":[1,]}`, `{"a":"\ud800`, `{"a" 1`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := members(text, Limits{})
		if err != nil {
			var object map[string]json.RawMessage
			if json.Unmarshal([]byte(text), &object) == nil && object != nil && !repaired(err) {
				t.Fatalf("%q is refused: %v", text, err)
			}
			if !strings.Contains(err.Error(), " at byte ") {
				t.Fatalf("%q: error %v has no place", text, err)
			}
			return
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%q is accepted: %v", text, err)
		}
		if len(object) != len(list) {
			t.Fatalf("%d members, encoding/json has %d", len(list), len(object))
		}
		for name, value := range object {
			if !slices.Contains(list, name+"="+string(value)) {
				t.Fatalf("no member %q is %s", name, value)
			}
		}
		for _, quoted := range Strings([]byte(text)) {
			var s string
			if err := json.Unmarshal(quoted, &s); err != nil || s != Unquote(quoted) {
				t.Fatalf("%s reads as %q, want %q (%v)", quoted, Unquote(quoted), s, err)
			}
		}
	})
}

// repaired says that encoding/json lets pass what the error is about.
func repaired(err error) bool {
	for _, what := range []string{
		"duplicate key", "lone surrogate", "invalid UTF-8", "deeper than",
	} {
		if strings.Contains(err.Error(), what) {
			return true
		}
	}
	return false
}

// FuzzText holds strings against encoding/json.
func FuzzText(f *testing.F) {
	for _, s := range []string{`"a"`, `"\u00e9\ud83d\ude00"`, `"\ud800"`, `"\n\/\\"`, `"`, `"\`, "\"\x01\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		var got []byte
		err := Read([]byte(text), Limits{}, func(r *Reader) (err error) {
			got, err = r.AppendText(nil)
			return err
		})
		var want string
		wantErr := json.Unmarshal([]byte(text), &want)
		if err == nil && (wantErr != nil || string(got) != want) {
			t.Fatalf("%q reads as %q, want %q (%v)", text, got, want, wantErr)
		}
		// Half a surrogate pair is refused, which encoding/json replaces.
		isText := strings.HasPrefix(strings.Trim(text, " \t\r\n"), `"`)
		if err != nil && wantErr == nil && isText && !strings.Contains(err.Error(), "surrogate") {
			t.Fatalf("%q is refused: %v", text, err)
		}
	})
}
