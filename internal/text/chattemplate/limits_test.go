package chattemplate

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestHostileTemplates holds templates that try to take more than their share. Each must end in an
// error, soon.
func TestHostileTemplates(t *testing.T) {
	deep := func(open, middle, closing string) string {
		return strings.Repeat(open, 5000) + middle + strings.Repeat(closing, 5000)
	}
	cases := []struct{ name, source, want string }{
		{"nested loops", `{% for a in range(99999) %}{% for b in 'xxxxxxxxxxxxxxxx' %}{% for c in 'xxxxxxxxxxxxxxxx' %}{% endfor %}{% endfor %}{% endfor %}`, "too many steps"},
		{"nested ranges", `{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}`, "too m"},
		{"long output", `{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}`,
			"output is larger"},
		{"long data", `{% for a in range(99999) %}` + strings.Repeat("x", 1000) + `{% endfor %}`,
			"output is larger"},
		{"doubling text", `{% set ns = namespace(x='xx') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}`, "too much memory"},
		{"doubling list", `{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}`, "too much memory"},
		{"shared list printed",
			`{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}`, "too many steps"},
		{"shared list as JSON",
			`{% set ns = namespace(x=[]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson|length }}`, "too many steps"},
		{"shared list compared",
			`{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}`, "too many steps"},
		{"shared tuple as key",
			`{% set ns = namespace(x=(1,)) %}{% for a in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}`, "too large to be a dict key"},
		{"deep value", `{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}`, "nested too deeply"},
		{"deep value compared",
			`{% set ns = namespace(x=[], y=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x < ns.y }}`, "nested too deeply"},
		{"namespace in itself", `{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}`,
			"nested too deeply"},
		{"endless macro", `{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`, "called too deeply"},
		{"macro tree", `{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(100) }}`, "too m"},
		{"repeat", `{{ 'x' * 1000000000000 }}`, "too much memory"},
		{"repeat list", `{{ [1] * 1000000000000 }}`, "too much memory"},
		{"repeat huge", `{{ 'xx' * 9223372036854775807 }}`, "too much memory"},
		{"power", `{{ 2 ** 1000000000 }}`, "too large"},
		{"power of big", `{{ (2 ** 5000) ** 5000 }}`, "too large"},
		{"product", `{% set ns = namespace(x=2) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}`, "too large"},
		{"percent width", `{{ '%999999999d' % 1 }}`, "too much memory"},
		{"percent star", `{{ '%*d' % (999999999, 1) }}`, "too much memory"},
		{"percent precision", `{{ '%.999999999f' % 1 }}`, "too large"},
		{"percent digits", `{{ '%.999999999d' % 1 }}`, "too large"},
		{"format width", `{{ '{:>999999999}'.format('a') }}`, "too much memory"},
		{"format precision", `{{ '{:.999999999f}'.format(1.5) }}`, "too large"},
		{"format recursion", `{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}`, "recursion"},
		{"ljust", `{{ 'x'.ljust(999999999) }}`, "too much memory"},
		{"center", `{{ 'x'.center(9999999999999) }}`, "too much memory"},
		{"center filter", `{{ 'x'|center(9999999999999) }}`, "too much memory"},
		{"zfill", `{{ 'x'.zfill(999999999) }}`, "too much memory"},
		{"expandtabs", `{{ 'x\t'.expandtabs(999999999) }}`, "too large"},
		{"indent", `{{ 'x\ny'|indent(999999999) }}`, "too much memory"},
		{"indent lines", `{{ ('x\n' * 100000)|indent(10000) }}`, "output is larger"},
		{"JSON indent", `{{ [1]|tojson(indent=999999999) }}`, "too large"},
		{"JSON indent text", `{{ [[[[1]]]]|tojson(indent=' ' * 8000000) }}`, "output is larger"},
		{"replace", `{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}`, "too much memory"},
		{"replace filter", `{{ ('x' * 1000000)|replace('', 'y' * 1000000) }}`, "too much memory"},
		{"join", `{{ ('y' * 1000000).join('x' * 1000000) }}`, "output is larger"},
		{"batch fill", `{{ [1]|batch(999999999, 0)|list }}`, "too much memory"},
		{"slice", `{{ [1]|slice(999999999)|list }}`, "too much memory"},
		{"split", `{{ ('x ' * 40000000).split() }}`, "too much memory"},
		{"range", `{{ range(100001) }}`, "range too big"},
		{"range overflow", `{{ range(-9223372036854775807, 9223372036854775807) }}`, "too large"},
		{"round", `{{ 1.5|round(999999999) }}`, "too large"},
		{"scans", `{% set s = 'x' * 10000000 %}{% for a in range(99999) %}{{ 'y' in s }}{% endfor %}`, "too many steps"},
		{"method scans", `{% set s = 'x' * 10000000 %}{% for a in range(99999) %}{{ s.count('y') }}{% endfor %}`, "too many steps"},
		{"list scans", `{% set s = [1] * 1000000 %}{% for a in range(99999) %}{{ 2 in s }}{% endfor %}`, "too many steps"},
		{"sorts", `{% for a in range(99999) %}{% set x = range(99999)|sort %}{% endfor %}`,
			"too m"},
		{"deep parentheses", "{{ " + deep("(", "1", ")") + " }}", "nested too deeply"},
		{"deep brackets", "{{ " + deep("[", "1", "]") + " }}", "nested too deeply"},
		{"deep braces", "{{ " + deep("{1:", "1", "}") + " }}", "nested too deeply"},
		{"deep calls", "{{ " + deep("f(", "1", ")") + " }}", "nested too deeply"},
		{"deep index", "{{ " + deep("a[", "1", "]") + " }}", "nested too deeply"},
		{"deep not", "{{ " + deep("not ", "1", "") + " }}", "nested too deeply"},
		{"deep minus", "{{ " + deep("- ", "1", "") + " }}", "nested too deeply"},
		{"deep if", deep("{% if 1 %}", "x", "{% endif %}"), "nested too deeply"},
		{"deep for", deep("{% for a in b %}", "x", "{% endfor %}"), "nested too deeply"},
		{"deep inline if", "{{ " + deep("1 if 1 else ", "1", "") + " }}", "nested too deeply"},
		{"deep target", "{% for " + deep("(", "a", ")") + " in b %}{% endfor %}",
			"nested too deeply"},
		{"long attribute chain", "{{ a" + strings.Repeat(".a", 5000) + " }}", "nested too deeply"},
		{"long filter chain", "{{ a" + strings.Repeat("|list", 5000) + " }}", "nested too deeply"},
		{"long product", "{{ 1" + strings.Repeat("*1", 5000) + " }}", "nested too deeply"},
		{"long filter block", "{% filter upper" + strings.Repeat("|upper", 5000) +
			" %}{% endfilter %}", "nested too deeply"},
		{"chains in chains", "{{ " + strings.Repeat("(", 100) + "a" +
			strings.Repeat(strings.Repeat(".a", 100)+")", 100) + " }}", "nested too deeply"},
		{"long attribute path", `{{ [1]|map(attribute='a.' * 1000)|list }}`, "too long"},
		{"huge source", strings.Repeat("x", maxSource+1), "bytes, more than"},
	}
	opt := Options{Now: fixtureNow}
	if testing.Short() {
		// The same limits are met sooner; the default ones take seconds to reach.
		opt.MaxSteps, opt.MaxMemory = defaultMaxSteps/3, defaultMaxMemory/5
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			tmpl, err := Parse(c.source)
			if err == nil {
				_, err = tmpl.Render(NewMap(), opt)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one about %q", err, c.want)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Fatalf("took %v", took)
			}
		})
	}
}

// TestLongButFlat holds long templates that are no deeper than they look and must render.
func TestLongButFlat(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"sum": {"{{ 'a'" + strings.Repeat(" + 'a'", 9999) + " }}", strings.Repeat("a", 10000)},
		"concat": {"{{ 'a'" + strings.Repeat(" ~ 1", 9999) + " }}", "a" + strings.Repeat("1",
			9999)},
		"or": {"{{ ''" + strings.Repeat(" or ''", 9999) + " or 'x' }}", "x"},
		"elif": {"{% if false %}" + strings.Repeat("{% elif false %}", 9999) +
			"{% else %}x{% endif %}", "x"},
		"ifs":    {strings.Repeat("{% if 1 %}a{% endif %}", 9999), strings.Repeat("a", 9999)},
		"string": {"{{ " + strings.Repeat("'a' ", 9999) + " }}", strings.Repeat("a", 9999)},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := render(c.source, nil); err != nil || got != c.want {
				t.Fatalf("rendered %.40q, error %v", got, err)
			}
		})
	}
}

func TestOptionsBound(t *testing.T) {
	tmpl, err := Parse("{% for i in range(10) %}{{ 'x' * 100 }}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opt  Options
		want string
	}{
		"output exact":  {Options{MaxOutput: 1000}, ""},
		"output less":   {Options{MaxOutput: 999}, "output is larger than 999"},
		"steps":         {Options{MaxSteps: 20}, "too many steps"},
		"memory":        {Options{MaxMemory: 500}, "too much memory"},
		"all defaults":  {Options{}, ""},
		"negative ones": {Options{MaxOutput: -1, MaxSteps: -1, MaxMemory: -1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tmpl.Render(nil, c.opt)
			if c.want == "" && (err != nil || len(got) != 1000) {
				t.Fatalf("%d bytes, error %v", len(got), err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestErrorLines(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		line   int
		raised bool
	}{
		"unknown tag":    {"a\nb\n{% nope %}", 3, false},
		"unclosed":       {"{% if x %}\n\n", 2, false},
		"bad character":  {"\n\n\n{{ 1 $ }}", 4, false},
		"unclosed quote": {"\n{{ 'a }}", 2, false},
		"attribute":      {"\n{{ a.b }}", 2, false},
		"after comment":  {"{#\n\n#}\n{{ a.b }}", 4, false},
		"after raw":      {"{% raw %}\n\n{% endraw %}{{ a.b }}", 3, false},
		"after strip":    {"x\n\n  {%- if 1 -%}\n\n  {{ a.b }}{% endif %}", 5, false},
		"in a macro":     {"{% macro m() %}\n{{ a.b }}{% endmacro %}\n{{ m() }}", 2, false},
		"in a long tag":  {"{{ 1 +\n2 +\na.b }}", 3, false},
		"raise":          {"{% if 1 %}\n{{ raise_exception('no') }}\n{% endif %}", 2, true},
		"filter":         {"\n{% set x = 1 %}\n{{ x|nope }}", 3, false},
		"elif":           {"{% if 0 %}\n{% elif a.b %}\n{% endif %}", 2, false},
		"unpack":         {"\n{% for a, b in [1] %}{% endfor %}", 2, false},
		"break":          {"\n{% break %}", 2, false},
		"break in macro": {"{% for x in y %}\n{% macro m() %}{% break %}" +
			"{% endmacro %}{% endfor %}", 2, false},
		"recursive": {"\n{% for x in y recursive %}{% endfor %}", 2, false},
		"steps in a loop": {"\n{% for x in range(99999) %}\n{% for y in range(99) %}{{ y }}{% " +
			"endfor %}{% endfor %}", 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(c.source, nil)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v", err)
			}
			if e.Line != c.line || e.Raised != c.raised {
				t.Fatalf("error %v: line %d, raised %v, want %d, %v", err, e.Line, e.Raised, c.line,
					c.raised)
			}
		})
	}
}

// TestRefused holds what Python's sandbox allows or prints differently and this package refuses on
// purpose.
func TestRefused(t *testing.T) {
	for _, source := range []string{
		"{{ [1]|attr('append') }}", "{{ 'a'.encode() }}", "{{ lipsum() }}", "{{ [].append(1) }}",
		"{{ {}.update({}) }}",
		"{{ ''.__class__.__mro__ }}", "{{ {}.__class__.__base__ }}",
		"{{ namespace.__init__.__globals__ }}",
		"{{ self.__init__ }}", "{{ cycler.__init__.__globals__.os }}",
		"{{ '{0.__class__.__mro__}'.format(1) }}",
		"{{ '\\N{BULLET}' }}", "{{ (-8) ** 0.5 }}", "{% include 'x' %}",
		"{% block a %}{% endblock %}",
	} {
		if got, err := render(source, nil); err == nil {
			t.Errorf("%s rendered %q", source, got)
		}
	}
}
