package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const deployed = "../../../deploy"

// known are the series that the program shows, each with the names of its labels.
func known(t *testing.T) map[string][]string {
	series := map[string][]string{}
	for line := range strings.Lines(scrape(t, exercised())) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "{")
		if strings.HasPrefix(line, "#") || rest == "" {
			continue
		}
		var labels []string
		for _, l := range labelName.FindAllStringSubmatch(rest, -1) {
			labels = append(labels, l[1])
		}
		series[name] = labels
	}
	return series
}

var (
	labelName = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
	// A token of PromQL: text, number with a unit, name, or one character.
	promToken = regexp.MustCompile(
		`"(?:[^"\\]|\\.)*"|[0-9][0-9a-z.]*|\$?[a-zA-Z_][a-zA-Z0-9_:]*|\S`)
)

// checkExpr takes a PromQL expression apart: brackets close, and what is no function, keyword or
// label is a series that exists, with the labels that are asked of it.
func checkExpr(expr string, series map[string][]string) error {
	functions := []string{"sum", "avg", "max", "min", "rate", "increase", "histogram_quantile",
		"avg_over_time", "by", "on", "label_values"}
	tokens := promToken.FindAllString(expr, -1)
	var open []string
	var labels []string // of the series named last
	found := 0
	for i, token := range tokens {
		next := ""
		if i+1 < len(tokens) {
			next = tokens[i+1]
		}
		in := ""
		if len(open) > 0 {
			in = open[len(open)-1]
		}
		switch {
		case strings.ContainsAny(token, "([{") && len(token) == 1:
			if token == "(" && i > 0 && (tokens[i-1] == "by" || tokens[i-1] == "on") {
				token = "by("
			}
			open = append(open, token)
		case strings.ContainsAny(token, ")]}") && len(token) == 1:
			if in == "" || strings.IndexByte(")]}", token[0]) != strings.IndexByte("([{",
				in[len(in)-1]) {
				return fmt.Errorf("%q closes %q", token, in)
			}
			open = open[:len(open)-1]
		case !regexp.MustCompile(`^[a-zA-Z_]`).MatchString(token):
		case in == "{":
			if !slices.Contains(labels, token) {
				return fmt.Errorf("label %s is none of %v", token, labels)
			}
		case in == "by(":
			if !slices.ContainsFunc([]string{"le", "model_name", "reason", "finished_reason",
				"handler", "status", "rank", "engine"}, func(l string) bool { return l == token }) {
				return fmt.Errorf("label %s is not known", token)
			}
		case slices.Contains(functions, token):
			if next != "(" && next != "by" {
				return fmt.Errorf("%s is followed by %q", token, next)
			}
		case token == "and", token == "model_name" && tokens[0] == "label_values":
		default:
			if labels = series[token]; labels == nil {
				return fmt.Errorf("there is no series %s", token)
			}
			found++
		}
	}
	if len(open) > 0 || found == 0 {
		return fmt.Errorf("%d brackets stay open, %d series", len(open), found)
	}
	return nil
}

// TestBoard: every query of the Grafana board is about series that exist.
func TestBoard(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(deployed, "grafana/eagleray.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Templating struct {
			List []struct{ Type, Query string }
		}
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	series := known(t)
	used := string(raw)
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q is there twice, or empty", p.ID, p.Title)
		}
		seen[p.ID] = true
		for _, target := range p.Targets {
			if err := checkExpr(target.Expr, series); err != nil {
				t.Errorf("panel %q: %v in %s", p.Title, err, target.Expr)
			}
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			if err := checkExpr(v.Query, series); err != nil {
				t.Errorf("variable: %v in %s", err, v.Query)
			}
		}
	}
	if len(board.Panels) < 15 || !strings.Contains(used, "$__rate_interval") {
		t.Errorf("%d panels", len(board.Panels))
	}
}

// TestRayBoard: the board for Ray's export of the same series differs from the other one by their
// names and its own. (-rewrite)
func TestRayBoard(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(deployed, "grafana/eagleray.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("eagleray:", "ray_eagleray_", "http_request",
		"ray_eagleray_http_request",
		`"uid": "eagleray"`, `"uid": "eagleray-ray"`, `"title": "Eagle Ray"`,
		`"title": "Eagle Ray on Ray"`).
		Replace(string(raw))
	path := filepath.Join(deployed, "grafana/eagleray-ray.json")
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not made of the other board: %v", path, err)
	}
	if strings.Count(want, "eagleray-ray\"") != 1 || strings.Count(want, "Eagle Ray on Ray") != 1 {
		t.Error("the boards have one name")
	}
}

// TestRules: every rule is about series that exist; promtool agrees, where it is installed.
func TestRules(t *testing.T) {
	path := filepath.Join(deployed, "prometheus/rules.yaml")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	series := known(t)
	rules := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			rules++
			// They answer 503 while a trainer pauses or the engine sleeps, which is no error.
			if r.Alert == "EagleRayServerErrors" &&
				!strings.Contains(r.Expr, `handler!~"/health|/ping|/readyz"`) {
				t.Errorf("%s counts answers of probes: %s", r.Alert, r.Expr)
			}
			if err := checkExpr(r.Expr, series); err != nil {
				t.Errorf("%s%s: %v in %s", r.Record, r.Alert, err, r.Expr)
			}
		}
	}
	if rules < 10 {
		t.Errorf("%d rules", rules)
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed (package prometheus)")
		return
	}
	if out, err := exec.Command(tool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// TestCheckExpr: the check finds what it is there for.
func TestCheckExpr(t *testing.T) {
	series := known(t)
	for expr, want := range map[string]string{
		`rate(eagleray:prompt_tokens_total[5m])`:                       "",
		`sum by (le) (rate(http_request_duration_seconds_bucket[1m]))`: "",
		`rate(eagleray:prompt_token_total[5m])`:                        "no series",
		`rate(vllm:prompt_tokens_total[5m])`:                           "no series",
		`rate(eagleray:prompt_tokens_total{rank="1"}[5m])`:             "label rank",
		`sum by (colour) (eagleray:num_requests_running)`:              "label colour",
		`rate(eagleray:prompt_tokens_total[5m)`:                        "closes",
		`sum(eagleray:num_requests_running`:                            "stay open",
		`1 + 1`:                                                        "0 series",
	} {
		err := checkExpr(expr, series)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", expr, err, want)
		}
	}
}
