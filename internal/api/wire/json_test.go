package wire

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func testLimits() Limits { return Limits{JSONDepth: 8, JSONMembers: 100}.WithDefaults() }

func TestParseObjectRefuses(t *testing.T) {
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	var members []string
	for i := range 101 {
		members = append(members, `"k`+strings.Repeat("x", i)+`":1`)
	}
	for name, c := range map[string]struct{ body, param, message string }{
		"empty":                 {"", "", "empty"},
		"spaces":                {" \n", "", "empty"},
		"not JSON":              {"hello", "", "must be a JSON object"},
		"array":                 {"[1]", "", "must be a JSON object"},
		"truncated":             {`{"a":1`, "", "expected , or }"},
		"truncated string":      {`{"a":"x`, "a", "unexpected end"},
		"truncated escape":      {`{"a":"\`, "a", "unexpected end"},
		"truncated literal":     {`{"a":tru}`, "a", "unexpected character"},
		"trailing data":         {`{} {}`, "", "data after"},
		"trailing comma":        {`{"a":1,}`, "", "key in quotes"},
		"array trailing comma":  {`{"a":[1,]}`, "a", "unexpected character"},
		"single quotes":         {`{'a':1}`, "", "key in quotes"},
		"byte order mark":       {"\xef\xbb\xbf{}", "", "byte order mark"},
		"invalid UTF-8":         {"{\"a\":\"\xff\"}", "a", "UTF-8"},
		"overlong UTF-8":        {"{\"a\":\"\xc0\xaf\"}", "a", "UTF-8"},
		"raw surrogate":         {"{\"a\":\"\xed\xa0\x80\"}", "a", "UTF-8"},
		"lone high surrogate":   {`{"a":"\ud800"}`, "a", "lone surrogate"},
		"lone low surrogate":    {`{"a":"\udc00 x"}`, "a", "lone surrogate"},
		"two high surrogates":   {`{"a":"\ud800\ud800"}`, "a", "lone surrogate"},
		"short unicode escape":  {`{"a":"\u12"}`, "a", "four hexadecimal"},
		"unknown escape":        {`{"a":"\x41"}`, "a", "escape"},
		"raw newline in string": {"{\"a\":\"\n\"}", "a", "control character"},
		"duplicate key":         {`{"a":1,"a":2}`, "", "duplicate key"},
		"duplicate by escape":   {`{"a":1,"\u0061":2}`, "", "duplicate key"},
		"nested duplicate":      {`{"m":[{"role":1,"role":2}]}`, "m", "duplicate key"},
		"too deep":              {`{"a":` + deep + `}`, "a", "deeper than 8"},
		"too many members":      {`{"a":{` + strings.Join(members, ",") + `}}`, "a", "more than 100"},
		"NaN":                   {`{"temperature":NaN}`, "temperature", "NaN"},
		"Infinity":              {`{"temperature":Infinity}`, "temperature", "Infinity"},
		"-Infinity":             {`{"temperature":-Infinity}`, "temperature", "-Infinity"},
		"leading zero":          {`{"a":01}`, "", "expected , or }"},
		"plus":                  {`{"a":+1}`, "a", "unexpected character"},
		"bare minus":            {`{"a":-}`, "a", "digit"},
		"no digits after point": {`{"a":1.}`, "a", "digit"},
		"no digits in exponent": {`{"a":1e}`, "a", "digit"},
		"hexadecimal":           {`{"a":0x10}`, "", "expected , or }"},
		"missing colon":         {`{"a" 1}`, "", "expected :"},
		"NUL byte":              {"{\"a\":\x00}", "a", "unexpected character"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseObject([]byte(c.body), testLimits())
			if err == nil {
				t.Fatalf("%q was accepted", Clip(c.body))
			}
			if err.Status != 400 || err.Param != c.param ||
				!strings.Contains(err.Message, c.message) {
				t.Errorf("got %d %q %q, want param %q and message with %q",
					err.Status, err.Param, err.Message, c.param, c.message)
			}
		})
	}
}

func TestParseObjectAccepts(t *testing.T) {
	body := ` {"a" : [ 1 , -2.5e+3,true,false,null,{} ,[]],` +
		`"\u00e9":"\ud83d\ude00\n\/","é2":"日本"}` + "\t"
	members, err := ParseObject([]byte(body), testLimits())
	if err != nil {
		t.Fatal(err)
	}
	if len(members) != 3 || members[0].Key != "a" || members[1].Key != "é" ||
		members[2].Key != "é2" {
		t.Fatalf("members %v", members)
	}
	if got := Unquote(members[1].Raw); got != "😀\n/" {
		t.Errorf("unquoted %q", got)
	}
	var elements []string
	if err := EachElement(members[0].Raw, func(_ int, raw []byte) *Error {
		elements = append(elements, string(raw))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(elements, "|"); got != "1|-2.5e+3|true|false|null|{}|[]" {
		t.Errorf("elements %s", got)
	}
}

// FuzzParseObject holds the scanner against encoding/json: what it accepts is valid and means the
// same.
func FuzzParseObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":"\u00e9\ud83d\ude00","b":[1,{"c":null}]}`, `{"a":1e400}`, "{\"a\":\"\xff\"}",
		`{"a":1,"a":2}`, `{"a":[[[[[[[[[[]]]]]]]]]]}`, `{"x":-0.0E-1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		members, bad := ParseObject(body, testLimits())
		if bad != nil {
			if bad.Status != 400 || bad.Message == "" {
				t.Fatalf("refused with %+v", bad)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("accepted invalid JSON %q", body)
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		if len(want) != len(members) {
			t.Fatalf("%d members, encoding/json has %d", len(members), len(want))
		}
		for _, m := range members {
			if string(want[m.Key]) != string(m.Raw) {
				t.Fatalf("member %q is %q, encoding/json has %q", m.Key, m.Raw, want[m.Key])
			}
			if m.Raw[0] == '"' {
				var s string
				if err := json.Unmarshal(m.Raw, &s); err != nil || s != Unquote(m.Raw) {
					t.Fatalf("unquote(%s) = %q, encoding/json has %q, %v", m.Raw, Unquote(m.Raw), s,
						err)
				}
			}
		}
	})
}

func TestParseInt(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-1": -1, "16": 16, "16.0": 16, `"1"`: 1, "true": 1, "1e3": 1000, "1.5e1": 15,
		"9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64} {
		got, err := ParseInt("x", []byte(text))
		if err != nil || got != want {
			t.Errorf("parseInt(%s) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"1.5", "1e-1", "9223372036854775808", "-9223372036854775809", "1e400", "1e300", `"1.5"`, `"a"`, `""`, "null", "[1]", "{}"} {
		if got, err := ParseInt("x", []byte(text)); err == nil || err.Param != "x" {
			t.Errorf("parseInt(%s) = %d, %v", text, got, err)
		}
	}
}

func TestParseFloat(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "-1.5": -1.5, "1e-5": 1e-5, "-0.0": 0, `"0.5"`: 0.5, "true": 1} {
		if got, err := ParseFloat("x", []byte(text)); err != nil || got != want {
			t.Errorf("parseFloat(%s) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"1e400", "-1e400", "1e39", `"1e39"`, `"nan"`, `"a"`, `""`, "null", "[1]"} {
		if got, err := ParseFloat("x", []byte(text)); err == nil || err.Param != "x" {
			t.Errorf("parseFloat(%s) = %v, %v", text, got, err)
		}
	}
}

func TestClip(t *testing.T) {
	if got := Clip("short"); got != "short" {
		t.Error(got)
	}
	if got := Clip(strings.Repeat("é", 100)); len(got) > 90 || strings.ContainsRune(got, '\ufffd') {
		t.Errorf("clip cut badly: %q", got)
	}
}
