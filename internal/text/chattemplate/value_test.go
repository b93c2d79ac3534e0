package chattemplate

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

func TestFromJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":{"d":[1,2.50,1e2,-0,-0.0]},"b":3}`: `{'b': 3, 'a': {'d': [1, 2.5, 100.0, 0, -0.0]}}`,
		` [ true , false , null ] `:                    `[True, False, None]`,
		`"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"`:        "a\"\\/\b\f\n\r\té😀",
		`"\ud800x\udc00\ud800\ud83d\ude00"`:            "\uFFFDx\uFFFD\uFFFD😀",
		"\"a\xffb\"":                                   "a\uFFFDb",
		"\"a\xff\\n\"":                                 "a\uFFFD\n",
		`18446744073709551616`:                         `18446744073709551616`,
		`-9223372036854775808`:                         `-9223372036854775808`,
		`1E400`:                                        `inf`,
		`{}`:                                           `{}`,
		`[]`:                                           `[]`,
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"a":0}`: `{'a': 0, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9, 'j': 10}`,
	} {
		v, err := FromJSON([]byte(in))
		if err != nil || v.String() != want {
			t.Errorf("%s: %q, %v; want %q", in, v.String(), err, want)
		}
	}
	for _, in := range []string{
		"", " ", "{", "[", "[1", "[1,", "[1,]", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`,
		`{1:2}`, "tru", "nul", "NaN", "Infinity", "+1", "01",
		"1.", ".5", "1e", "-", "--1", `"a`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"",
		"\"\\n\n\"", "1 2", "[] x", "'a'",
		strings.Repeat("[", 300) + strings.Repeat("]", 300), strings.Repeat("9", 5000),
	} {
		if v, err := FromJSON([]byte(in)); err == nil {
			t.Errorf("%.20q: read as %s", in, v)
		}
	}
}

func TestMapKeepsOrder(t *testing.T) {
	m := NewMap()
	var want []string
	for i := range 100 {
		key := "k" + strconv.Itoa(i*7%100)
		want = append(want, key)
		m.Set(key, values.Int(int64(i)))
	}
	m.Set("k7", String("again"))
	if got := m.Keys(); !reflect.DeepEqual(got, want) {
		t.Fatalf("keys %v", got)
	}
	if v, ok := m.Get("k7"); !ok || v.String() != "again" {
		t.Fatalf("k7 is %v, %v", v, ok)
	}
	if _, ok := m.Get("absent"); ok || m.Len() != 100 {
		t.Fatalf("absent key found, or %d keys", m.Len())
	}
	if less := m.Without("k7"); less.Len() != 99 || m.Len() != 100 {
		t.Fatalf("%d and %d keys", less.Len(), m.Len())
	}
}

func TestGoValues(t *testing.T) {
	m := NewMap()
	m.Set("list", values.NewList([]Value{values.Int(1), values.Float(2), Bool(true), None(),
		String("a\xff"), values.Undefined()}))
	m.Set("gone", Value{})
	got, err := render("{{ list }}{{ gone is defined }}{{ list[5] is defined }}", m)
	if want := "[1, 2.0, True, None, 'a\uFFFD', Undefined]FalseFalse"; err != nil || got != want {
		t.Fatalf("rendered %q, %v; want %q", got, err, want)
	}
}

// TestConcurrentRenders shares one template and one context, as a server does.
func TestConcurrentRenders(t *testing.T) {
	tmpl, err := Parse("{% set ns = namespace(n=0) %}{% for k, v in d.items() %}{% set ns.n = " +
		"ns.n + v %}{% endfor %}{{ ns.n }}{{ d.k12 }}{{ d|tojson|length }}")
	if err != nil {
		t.Fatal(err)
	}
	d := NewMap()
	for i := range 50 {
		d.Set("k"+strconv.Itoa(i), values.Int(int64(i)))
	}
	vars := NewMap()
	vars.Set("d", d.Value())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if got, err := tmpl.Render(vars, Options{}); err != nil || got != "122512530" {
					t.Errorf("rendered %q, %v", got, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// FuzzFromJSON checks that FromJSON takes what encoding/json takes, and that what it prints reads
// back the same.
func FuzzFromJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5,"x\u00e9\ud83d\ude00"],"b":null}`, `[]`, `"\ud800"`,
		`-1e-7`, `123456789012345678901234567890`, `{"a":1,"a":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := FromJSON(raw)
		if err != nil {
			if json.Valid(raw) && len(raw) < 200 && !strings.Contains(err.Error(), "deep") {
				t.Fatalf("%q is valid JSON: %v", raw, err)
			}
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("%q is not valid JSON", raw)
		}
		text, err := v.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "Infinity") {
			return
		}
		again, err := FromJSON([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if second, _ := again.JSON(); second != text {
			t.Fatalf("%s became %s", text, second)
		}
	})
}
