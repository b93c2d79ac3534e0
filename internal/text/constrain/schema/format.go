package schema

import (
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// search is the strings in which a pattern is found.
func (c *compiler) search(p string) (regex.Ex, error) {
	if x, ok := c.patterns[p]; ok {
		return x, nil
	}
	x, err := c.text.found(p)
	if err == nil {
		c.patterns[p] = x
	}
	return x, err
}

// format is the strings of a format; those that are not enforced are not known.
func (c *compiler) format(name string) (regex.Ex, bool) {
	p, ok := formats[name]
	if !ok {
		return regex.Empty, false
	}
	x, err := c.search("^(?:" + p + ")$")
	if err != nil {
		c.unsupported("format", "the format %s: %v", name, err)
		return c.text.any(), true
	}
	if name == "hostname" || name == "idn-hostname" {
		// Labels with hyphens in the third and fourth place are encoded ones: not all are right.
		encoded, err := c.search(`(?:^|\.)[^.]{2}--`)
		if err != nil {
			c.unsupported("format", "the format %s: %v", name, err)
		}
		x = c.text.b.Minus(c.text.b.And(x, c.text.b.Rep(c.text.rune(), 1, 253)), encoded)
	}
	return x, true
}

// formats are the formats that are enforced, as patterns of the whole string.
var formats = makeFormats()

func makeFormats() map[string]string {
	const (
		day = `(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|` +
			`(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|` +
			`(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)`
		clock   = `(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[zZ]|[+-](?:[01]\d|2[0-3]):[0-5]\d)`
		seconds = `(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)`
		label   = `[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
		host    = label + `(?:\.` + label + `)*`
		atom    = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
		wide    = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u00A0-\\u{10FFFD}-]+"
		octet   = `(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
		ipv4    = octet + `(?:\.` + octet + `){3}`
		h       = `[0-9A-Fa-f]{1,4}`
		ls      = `(?:` + h + `:` + h + `|` + ipv4 + `)`
		ipv6    = `(?:(?:H:){6}LS|::(?:H:){5}LS|(?:H)?::(?:H:){4}LS|(?:(?:H:){0,1}H)?::(?:H:){3}LS|` +
			`(?:(?:H:){0,2}H)?::(?:H:){2}LS|(?:(?:H:){0,3}H)?::H:LS|(?:(?:H:){0,4}H)?::LS|` +
			`(?:(?:H:){0,5}H)?::H|(?:(?:H:){0,6}H)?::)`
		pointer = `(?:/(?:[^/~]|~[01])*)*`
		hex     = `%[0-9A-Fa-f]{2}`
		varname = `(?:[A-Za-z0-9_]|` + hex + `)(?:\.?(?:[A-Za-z0-9_]|` + hex + `))*`
		varspec = varname + `(?::[1-9]\d{0,3}|\*)?`
	)
	v6 := strings.NewReplacer("LS", ls, "H", h).Replace(ipv6)
	uri := func(extra, private string) (absolute, reference string) {
		char := func(more string) string {
			return `(?:[A-Za-z0-9._~!$&'()*+,;=` + more + extra + `-]|` + hex + `)`
		}
		part := char(":@")
		authority := `//(?:` + char(":") + `*@)?(?:\[(?:` + v6 +
			`|v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|` + char("") + `*)(?::\d*)?`
		tail := `(?:\?` + char(":@/?"+private) + `*)?(?:#` + char(":@/?") + `*)?`
		path := `(?:/` + part + `*)*`
		rooted := `/(?:` + part + `+` + path + `)?`
		absolute = `[A-Za-z][A-Za-z0-9+.-]*:(?:` + authority + path + `|` + rooted + `|` + part +
			`+` + path + `|)` + tail
		relative := `(?:` + authority + path + `|` + rooted + `|` + char("@") + `+` + path + `|)` +
			tail
		return absolute, absolute + `|` + relative
	}
	absolute, reference := uri("", "")
	letters := `\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF\u{E1000}-\u{EFFFD}`
	for plane := 1; plane < 0xE; plane++ {
		letters += fmt.Sprintf(`\u{%X0000}-\u{%XFFFD}`, plane, plane)
	}
	iri, iriReference := uri(letters,
		`\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}`)
	return map[string]string{
		"date":      day,
		"time":      clock,
		"date-time": day + `[tT]` + clock,
		"duration": `P(?:\d+W|(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)(?:T` + seconds +
			`)?|T` + seconds + `)`,
		"email":         atom + `(?:\.` + atom + `)*@` + host,
		"idn-email":     wide + `(?:\.` + wide + `)*@` + host,
		"hostname":      host,
		"idn-hostname":  host,
		"ipv4":          ipv4,
		"ipv6":          v6,
		"uuid":          `[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`,
		"uri":           absolute,
		"uri-reference": reference,
		"iri":           iri,
		"iri-reference": iriReference,
		"uri-template": "(?:[^\\x00-\\x20\"'<>%\\\\^`{|}\\x7f]|" + hex + `|\{[+#./;?&=,!@|]?` +
			varspec + `(?:,` + varspec + `)*\})*`,
		"json-pointer":          pointer,
		"regex":                 expression(3),
		"relative-json-pointer": `(?:0|[1-9]\d*)(?:#|` + pointer + `)`,
	}
}

// expression is a pattern of regular expressions that every dialect reads alike: groups up to a
// depth, no back references, no assertions but anchors.
func expression(depth int) string {
	const escaped = `\\[dDsSwWnrtfv^$\\.*+?()\[\]{}|/-]`
	var ranges []string
	for _, span := range []string{"az", "AZ", "09"} {
		for first := span[0]; first <= span[1]; first++ {
			ranges = append(ranges, string(first)+"-["+string(first)+"-"+span[1:]+"]")
		}
	}
	class := `\[\^?(?:` + strings.Join(ranges, "|") + `|[^\[\]\\^&~|-]|` + escaped + `)+-?\]`
	var spans []string // of counts, the second not less than the first
	for d := '0'; d <= '9'; d++ {
		spans = append(spans, string(d)+",["+string(d)+"-9]")
		if d > '0' && d < '9' {
			spans = append(spans, string(d)+`\d,[`+string(d+1)+`-9]\d`)
		}
	}
	count := `(?:(?:[*+?]|\{(?:\d{1,3},?|\d,[1-9]\d{1,2}|[1-9]\d,[1-9]\d\d|` +
		strings.Join(spans, "|") + `)\})\??)?`
	atom := `(?:[^\\^$.*+?()\[\]{}|]|\.|` + escaped + `|` + class + `)` + count
	x := ``
	for range depth + 1 {
		item := `(?:` + atom + `|[\^$]`
		if x != `` {
			item += `|\((?:\?:)?` + x + `\)` + count
		}
		item += `)`
		x = item + `*(?:\|` + item + `*)*`
	}
	return x
}
