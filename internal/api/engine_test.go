package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/api/apitest"
	"github.com/eagleray/eagleray/internal/api/conform"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// serve is the built-in model behind the API.
func serve(t *testing.T, change func(*config.Config)) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(ofModel(t, change))
	t.Cleanup(server.Close)
	return server
}

// described is serve for clients that others wrote: what they send and get is as the document of
// the routes has it.
func described(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(conform.Handler(t, ofModel(t, nil)))
	t.Cleanup(server.Close)
	return server
}

func ofModel(t *testing.T, change func(*config.Config)) http.Handler {
	t.Helper()
	e := apitest.Open(t, "auto")
	c := config.Default()
	if change != nil {
		change(&c)
	}
	kept := store.New("", store.Options{})
	t.Cleanup(func() { kept.Close() })
	s, err := api.New(api.Options{Info: e.Info(), Engine: e, Config: c, Responses: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Handler()
}

// TestCallsOfModel: a model that has never seen a tool calls as it is told to, in every format.
func TestCallsOfModel(t *testing.T) {
	const schema = `{"type":"object","properties":{"city":{"enum":["Paris","Rome"]},"days":{"type":"integer","minimum":0,"maximum":30}},"required":["city"]}`
	type arguments struct {
		City string
		Days *int
	}
	seeds, ended := 3, 0
	if testing.Short() {
		seeds = 1
	}
	for _, parser := range []string{"none", "hermes", "llama3_json", "qwen3_xml", "deepseek_v31",
		"mistral", "openai", "gemma4", "olmo3"} {
		url := serve(t, func(c *config.Config) { c.Model.ToolCallParser = parser }).URL
		for i, choice := range []string{`"required"`,
			`{"type":"function","function":{"name":"weather"}}`} {
			for seed := range seeds {
				body := fmt.Sprintf(
					`{"messages":[{"role":"user","content":"The weather?"}],"max_tokens":200,"seed":%d,"parallel_tool_calls":false,`+
						`"tools":[{"type":"function","function":{"name":"weather","parameters":%s}}],"tool_choice":%s}`, seed, schema, choice)
				r, err := http.Post(url+"/v1/chat/completions", "application/json",
					strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					Choices []struct {
						FinishReason string `json:"finish_reason"`
						Message      struct {
							Content   *string
							ToolCalls []struct {
								Function struct{ Name, Arguments string }
							} `json:"tool_calls"`
						}
					}
				}
				err = json.NewDecoder(r.Body).Decode(&got)
				if r.Body.Close(); err != nil || r.StatusCode != http.StatusOK {
					t.Fatalf("%s: status %d, %v", parser, r.StatusCode, err)
				}
				c := got.Choices[0]
				if c.FinishReason == "length" {
					continue
				}
				ended++
				if want := []string{"tool_calls", "stop"}[i]; c.FinishReason != want ||
					c.Message.Content != nil || len(c.Message.ToolCalls) != 1 {
					t.Fatalf("%s: %+v", parser, c)
				}
				f, a := c.Message.ToolCalls[0].Function, arguments{}
				d := json.NewDecoder(strings.NewReader(f.Arguments))
				d.DisallowUnknownFields()
				if err := d.Decode(&a); err != nil || f.Name != "weather" || a.City != "Paris" &&
					a.City != "Rome" || a.Days != nil && (*a.Days < 0 || *a.Days > 30) {
					t.Errorf("%s: %+v: %v", parser, f, err)
				}
			}
		}
	}
	if ended < 12*seeds {
		t.Errorf("only %d calls came to an end", ended)
	}
}

// TestFormatsThatCannotSay: what values without quotes cannot say of a schema is said as JSON where
// a call must be, and not at all where none has to be.
func TestFormatsThatCannotSay(t *testing.T) {
	url := serve(t, func(c *config.Config) {
		c.Model.ToolCallParser, c.Model.TrustRequestChatTemplate = "qwen3_xml", true
	}).URL
	const tool = `{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"d":{"type":"string","format":"date"}},"required":["d"]}}}`
	for _, choice := range []string{`"auto"`, `"required"`,
		`{"type":"function","function":{"name":"f"}}`} {
		r, err := http.Post(url+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"messages":[{"role":"user","content":"When?"}],`+
				`"chat_template":"{{ messages[0].content }}{{ tools | tojson }}",`+
				`"max_tokens":60,"seed":1,"tools":[`+tool+`],"tool_choice":`+choice+`}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if called := strings.Contains(string(body), `"arguments":"{`); err != nil ||
			r.StatusCode != http.StatusOK || called != (choice != `"auto"`) {
			t.Errorf("%s: status %d: %s", choice, r.StatusCode, body)
		}
	}
}

// TestPythonClients runs testdata/clients with the Python in $EAGLERAY_CLIENTS, which has
// requirements/clients.txt.
func TestPythonClients(t *testing.T) {
	python := os.Getenv("EAGLERAY_CLIENTS")
	if python == "" {
		t.Skip("EAGLERAY_CLIENTS names no Python with requirements/clients.txt")
	}
	url := described(t).URL
	for _, script := range []string{"tools.py", "responses.py", "messages.py"} {
		out, err := exec.CommandContext(t.Context(), python, "testdata/clients/"+script,
			url).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
		t.Logf("%s: %s", script, out)
	}
}

// TestNodeClients runs testdata/clients with the modules in $EAGLERAY_NODE_CLIENTS, a folder where
// npm has installed requirements/clients-node.json as its package.json.
func TestNodeClients(t *testing.T) {
	folder := os.Getenv("EAGLERAY_NODE_CLIENTS")
	if folder == "" {
		t.Skip("EAGLERAY_NODE_CLIENTS names no folder with the modules of " +
			"requirements/clients-node.json")
	}
	c := exec.CommandContext(t.Context(), "node", "testdata/clients/responses.cjs",
		described(t).URL)
	c.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(folder, "node_modules"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
