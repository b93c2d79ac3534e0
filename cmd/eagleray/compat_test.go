package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/compat"
)

// TestCompat prints what there is, and one topic of it, as text and as JSON.
func TestCompat(t *testing.T) {
	t.Parallel()
	code, all, _ := execute(t, "", "compat")
	for _, want := range []string{
		"flags\n\n", `(?m)^--tensor-parallel-size +differs +1, 2, 4 or 8`, "routes\n\n",
		`(?m)^POST /v1/chat/completions +same +text only$`, "metrics\n\n",
		`(?m)^num_requests_running +same$`, `(?m)^--enable-lora +same`, "models\n\n",
		`(?m)^LlamaForCausalLM +same$`, `(?m)^model_type gemma3 +differs +the language model`,
	} {
		if !regexp.MustCompile(want).MatchString(all) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
	if code != 0 || strings.Contains(all, " \n") {
		t.Errorf("exit code %d, or spaces at the end of a line:\n%s", code, all)
	}
	_, routes, _ := execute(t, "", "compat", "routes")
	if routes == "" || !strings.Contains(all, routes) || strings.Contains(routes, "\n--") {
		t.Errorf("compat routes:\n%s", routes)
	}
	_, text, _ := execute(t, "", "compat", "metrics", "--json")
	var tables map[string][]compat.Entry
	if err := json.Unmarshal([]byte(text), &tables); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if len(tables) != 1 || len(tables["metrics"]) < 30 {
		t.Errorf("--json: %v", tables)
	}
	if code, _, stderr := execute(t, "", "compat", "fields"); code != exitUsage ||
		!strings.Contains(stderr, `"fields" is not one of flags, routes, metrics, models`) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
