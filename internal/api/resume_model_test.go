package api_test

import (
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestResumesOfModel breaks answers of the built-in model off, and has them go on where the prompt
// is in the prefix cache, as it was not before: beams, and what is drawn under constraints.
func TestResumesOfModel(t *testing.T) {
	url := serve(t, func(c *config.Config) {
		c.Model.ToolCallParser, c.Server.EnablePromptTokensDetails = "hermes", true
	}).URL
	prompt := `"prompt":"` + strings.Repeat("What does strings.Index do? ", 4)
	const chat = `{"messages":[{"role":"user","content":"The weather?"}],"max_tokens":60,"stream":true`
	const shape = `{"type":"object","properties":{"city":{"enum":["Paris","Rome"]},"days":{"type":"integer"}},"required":["city"]}`
	for name, c := range map[string]struct {
		path, body string
		// cached says that the beginning tells what the cache had, which is another number then.
		cached bool
	}{
		"drawn": {"completions", `{` + prompt + `","max_tokens":40,"stream":true,"n":3,"temperature":1,"logprobs":2,
			"ignore_eos":true,"stream_options":{"include_usage":true}}`, false},
		"told": {"completions", `{"prompt":"Once upon a time there was a package that nobody imported.","max_tokens":40,"stream":true,"ignore_eos":true,
			"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`, true},
		"greedy":     {"completions", `{` + prompt + `","max_tokens":40,"stream":true,"temperature":0,"stop":["string"]}`, false},
		"beams":      {"completions", `{` + prompt + `","max_tokens":8,"use_beam_search":true,"n":3}`, false},
		"structured": {"chat/completions", chat + `,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":` + shape + `}}}`, false},
		"calls": {"chat/completions", chat + `,"n":2,"temperature":1,"tools":[{"type":"function","function":{"name":"f","parameters":` + shape + `}}],
			"tool_choice":"required"}`, false},
		"response": {"responses", `{"input":"The weather?","max_output_tokens":60,"stream":true,"text":{"format":
			{"type":"json_schema","name":"a","schema":` + shape + `}}}`, false},
		"message": {"messages", chat + `,"tools":[{"name":"f","input_schema":` + shape + `}],"tool_choice":{"type":"any"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			status, token, full := resume(t, url+"/v1/"+c.path, c.body, "begin")
			if status != http.StatusOK || token == "" {
				t.Fatalf("%d %q: %s", status, token, full)
			}
			end := len(full)
			for _, at := range []int{strings.Index(full, `"completed_at":1`), strings.LastIndex(full, `"usage":{`)} {
				if at >= 0 {
					end = min(end, at)
				}
			}
			has := 2 * end / 3
			value := fmt.Sprintf("%s;%d;%08x", token, has, crc32.ChecksumIEEE([]byte(full[:has])))
			status, _, rest := resume(t, url+"/v1/"+c.path, c.body, value)
			if c.cached {
				if status != http.StatusConflict {
					t.Errorf("%d %s", status, rest)
				}
				return
			}
			if status != http.StatusOK || !strings.HasPrefix(rest, full[has:end]) {
				t.Errorf("%d %s\ninstead of %s", status, rest, full[has:])
			}
		})
	}
}

// resume asks for an answer, or for the rest of one.
func resume(t *testing.T, url, body, value string) (status int, token, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(server.ResumeHeader, value)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, a.Header.Get(server.ResumeHeader), string(text)
}
