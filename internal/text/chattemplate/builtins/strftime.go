package builtins

import (
	"fmt"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// strftime is datetime.now().strftime(layout) with glibc's directives in the C locale.
// datetime.now() has no time zone, so %z and %Z are empty, and an unknown directive stays as it is.
func strftime(run *values.Budget, layout string) (values.Value, error) {
	now := run.Now()
	w := values.Writer{Run: run, Limit: run.MaxOutput}
	for layout != "" && w.Err == nil {
		i := strings.IndexByte(layout, '%')
		if i < 0 {
			w.WriteText(layout)
			break
		}
		w.WriteText(layout[:i])
		rest := layout[i+1:]
		flag := byte(0)
		if len(rest) > 1 && strings.IndexByte("-_0^#", rest[0]) >= 0 {
			flag, rest = rest[0], rest[1:]
		}
		if rest == "" {
			w.WriteText(layout[i:])
			break
		}
		text, ok := directive(now, rest[0], flag)
		if !ok {
			text = layout[i : len(layout)-len(rest)+1]
		}
		w.WriteText(text)
		layout = rest[1:]
	}
	if w.Err != nil {
		return values.Value{}, w.Err
	}
	return run.NewString(string(w.Buf))
}

// padInt writes a number in a field that the flag pads: - not at all, _ with spaces, 0 with zeros.
func padInt(n, width int, pad string, flag byte) string {
	switch flag {
	case '-':
		pad = ""
	case '_':
		pad = " "
	case '0':
		pad = "0"
	}
	if pad == "" {
		return fmt.Sprint(n)
	}
	if pad == "0" {
		return fmt.Sprintf("%0*d", width, n)
	}
	return fmt.Sprintf("%*d", width, n)
}

// composites are the directives that stand for several others.
var composites = map[byte]string{
	'c': "%a %b %e %H:%M:%S %Y", 'D': "%m/%d/%y", 'F': "%Y-%m-%d", 'R': "%H:%M", 'T': "%H:%M:%S",
	'r': "%I:%M:%S %p", 'x': "%m/%d/%y", 'X': "%H:%M:%S",
}

func directive(t time.Time, c, flag byte) (string, bool) {
	if layout, ok := composites[c]; ok {
		var out strings.Builder
		for i := 0; i < len(layout); i++ {
			if layout[i] != '%' {
				out.WriteByte(layout[i])
				continue
			}
			i++
			text, _ := directive(t, layout[i], 0)
			out.WriteString(text)
		}
		return out.String(), true
	}
	if text, ok := nameDirective(t, c); ok {
		if flag == '^' || flag == '#' {
			text = strings.ToUpper(text)
		}
		return text, true
	}
	isoYear, isoWeek := t.ISOWeek()
	monday := (int(t.Weekday()) + 6) % 7
	switch c {
	case 'd':
		return padInt(t.Day(), 2, "0", flag), true
	case 'e':
		return padInt(t.Day(), 2, " ", flag), true
	case 'm':
		return padInt(int(t.Month()), 2, "0", flag), true
	case 'y':
		return padInt(t.Year()%100, 2, "0", flag), true
	case 'Y':
		return padInt(t.Year(), 1, "0", flag), true
	case 'C':
		return padInt(t.Year()/100, 2, "0", flag), true
	case 'G':
		return padInt(isoYear, 1, "0", flag), true
	case 'g':
		return padInt(isoYear%100, 2, "0", flag), true
	case 'H':
		return padInt(t.Hour(), 2, "0", flag), true
	case 'k':
		return padInt(t.Hour(), 2, " ", flag), true
	case 'I':
		return padInt((t.Hour()+11)%12+1, 2, "0", flag), true
	case 'l':
		return padInt((t.Hour()+11)%12+1, 2, " ", flag), true
	case 'M':
		return padInt(t.Minute(), 2, "0", flag), true
	case 'S':
		return padInt(t.Second(), 2, "0", flag), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'j':
		return padInt(t.YearDay(), 3, "0", flag), true
	case 'u':
		return fmt.Sprint(monday + 1), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'U':
		return padInt((t.YearDay()+6-int(t.Weekday()))/7, 2, "0", flag), true
	case 'W':
		return padInt((t.YearDay()+6-monday)/7, 2, "0", flag), true
	case 'V':
		return padInt(isoWeek, 2, "0", flag), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	}
	return "", false
}

func nameDirective(t time.Time, c byte) (string, bool) {
	switch c {
	case 'a':
		return t.Format("Mon"), true
	case 'A':
		return t.Format("Monday"), true
	case 'b', 'h':
		return t.Format("Jan"), true
	case 'B':
		return t.Format("January"), true
	case 'p':
		return t.Format("PM"), true
	case 'P':
		return t.Format("pm"), true
	case 'z', 'Z':
		return "", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case '%':
		return "%", true
	}
	return "", false
}
