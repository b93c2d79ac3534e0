package dashboard

import (
	"regexp"
	"strings"
	"testing"
)

func report(t *testing.T, results ...Result) string {
	t.Helper()
	var b strings.Builder
	if err := WriteReport(&b, results); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestReport: one file that refers to no other, whose policy names exactly what is in it.
func TestReport(t *testing.T) {
	const hostile = `{"model_id":"</script><script>alert(1)</script>{{script}}","mean_ttft_ms":5}`
	page := report(t, Result{"a <b>.json", []byte(hostile)},
		Result{"lines.json", []byte(`{"completed":1,"generated_texts":["secret"]}` + "\n" +
			`{"completed":2}`)})
	if strings.Contains(page, "secret") {
		t.Error("what a model has written is in the report")
	}
	if strings.Contains(page, "</script><script>alert") || strings.Contains(page, "a <b>") {
		t.Error("a result ends its element")
	}
	if n := strings.Count(page, "</script>"); n != 3 {
		t.Errorf("%d scripts", n)
	}
	refs := regexp.MustCompile(`(?i)<(link|img|iframe|script[^>]* src)`)
	if ref := refs.FindString(page); ref != "" {
		t.Errorf("the report refers to another file: %s", ref)
	}
	if left := regexp.MustCompile(`(?m)^(import|export) .*`).FindString(page); left != "" {
		t.Errorf("%q is left", left)
	}
	policy := regexp.MustCompile(
		`Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)
	if policy == nil || strings.Contains(policy[1], "unsafe") ||
		!strings.HasPrefix(policy[1], "default-src 'none'; ") {
		t.Fatalf("policy %q", policy)
	}
	inlines := regexp.MustCompile(
		`(?s)<(?:style|script|script type="module")>(.*?)</(?:style|script)>`)
	for _, inline := range inlines.FindAllStringSubmatch(page, -1) {
		if !strings.Contains(policy[1], hashOf(inline[1])) {
			t.Errorf("the policy does not allow %.60q", inline[1])
		}
	}
	if n := strings.Count(policy[1], "'sha256-"); n != 3 {
		t.Errorf("the policy allows %d inline texts", n)
	}
	if !strings.Contains(page, `{\"completed\":2}`) {
		t.Error("the second line of a file is lost")
	}
}

func TestReportErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":       "x.json: not a result of a benchmark: empty",
		"null":   "x.json: not a result of a benchmark: null",
		"[1]":    "x.json: not a result of a benchmark: json: cannot unmarshal array",
		"{}\nno": "x.json: not a result of a benchmark: invalid character",
	} {
		err := WriteReport(&strings.Builder{}, []Result{{"x.json", []byte(text)}})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
