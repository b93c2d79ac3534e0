package api

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

const hiInput = `"input":"hi"`

// TestResponsesRefusals: what is wrong with a request is named, in the words of this API.
func TestResponsesRefusals(t *testing.T) {
	s := newServer(t, hermesTemplate, keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	tool := func(inner string) string {
		return hiInput + `,"tools":[{"type":"function",` + inner +
			`}]`
	}
	for name, c := range map[string]refusal{
		"no input":        {`"model":"tiny"`, "input", "required"},
		"input number":    {`"input":5`, "input", "string or a list"},
		"input empty":     {`"input":[]`, "input", "empty"},
		"item number":     {`"input":[5]`, "input", "`input[0]` must be an object"},
		"item of nothing": {`"input":[{}]`, "input", "neither type nor role"},
		"item unknown": {`"input":[{"type":"web_search_call"}]`, "input",
			`"web_search_call" is not supported`},
		"reference without id": {`"input":[{"type":"item_reference"}]`, "input",
			"`input[0].id` is required"},
		"item bad id": {`"input":[{"role":"user","id":"a b","content":"x"}]`, "input",
			"`input[0].id`"},
		"role": {`"input":[{"role":"tool","content":"x"}]`, "input",
			"`input[0].role` must be user"},
		"role number": {`"input":[{"role":1,"type":"message","content":"x"}]`, "input",
			"`input[0].role` must be a string"},
		"no content": {`"input":[{"role":"user"}]`, "input",
			"`input[0].content` is required"},
		"content number": {`"input":[{"role":"user","content":1}]`, "input",
			"`input[0].content` must be a string or"},
		"image": {`"input":[{"role":"user","content":[{"type":"input_image"}]}]`,
			"input", "`input[0].content[0]` has type \"input_image\""},
		"part without text": {`"input":[{"role":"user","content":[{"type":"input_text"}]}]`,
			"input", "`input[0].content[0].text` must be a string"},
		"part number": {`"input":[{"role":"user","content":[1]}]`, "input",
			"`input[0].content[0]` must be an object"},
		"call without id": {`"input":[{"type":"function_call","name":"f","arguments":"{}"}]`,
			"input", "`input[0].call_id` is required"},
		"output without text": {`"input":[{"type":"function_call_output","call_id":"c"}]`, "input",
			"`input[0].output` is required"},
		"messages": {hiInput + `,"messages":[]`, "messages", "takes `input`"},
		"max_tokens": {hiInput + `,"max_tokens":5`, "max_tokens",
			"takes `max_output_tokens`"},
		"response_format": {hiInput + `,"response_format":{"type":"text"}`, "response_format",
			"takes `text.format`"},
		"n":                   {hiInput + `,"n":2`, "n", "not supported by /v1/responses"},
		"prompt template":     {hiInput + `,"prompt":{"id":"p"}`, "prompt", "not supported"},
		"conversation number": {hiInput + `,"conversation":5`, "conversation", "must be the id"},
		"conversation without id": {hiInput + `,"conversation":{"name":"c"}`, "conversation",
			"an object with `id`"},
		"conversation and response": {hiInput + `,"conversation":"c","previous_response_id":"r"`,
			"previous_response_id", "Mutually exclusive parameters"},
		"max_output_tokens 0": {hiInput + `,"max_output_tokens":0`, "max_output_tokens",
			"max_output_tokens"},
		"max_output_tokens": {hiInput + `,"max_output_tokens":"a"`, "max_output_tokens",
			"integer"},
		"too many tokens": {hiInput + `,"max_output_tokens":5000`, "max_output_tokens",
			"maximum context length"},
		"max_tool_calls": {hiInput + `,"max_tool_calls":0`, "max_tool_calls", "at least 1"},
		"background unkept": {hiInput + `,"background":true,"store":false`, "background",
			"needs `store`"},
		"metadata list": {hiInput + `,"metadata":[]`, "metadata", "object"},
		"metadata number": {hiInput + `,"metadata":{"a":1}`, "metadata",
			"`metadata.a` must be a string"},
		"metadata long": {hiInput + `,"metadata":{"a":"` + strings.Repeat("x", 513) + `"}`,
			"metadata", "512"},
		"metadata long key": {hiInput + `,"metadata":{"` + strings.Repeat("x", 65) + `":""}`,
			"metadata", "64"},
		"metadata many": {hiInput + `,"metadata":{` + manyPairs(17) + `}`, "metadata", "16"},
		"truncation": {hiInput + `,"truncation":"middle"`, "truncation",
			"must be auto or disabled"},
		"service tier":      {hiInput + `,"service_tier":"best"`, "service_tier", "must be auto"},
		"include":           {hiInput + `,"include":["x"]`, "include", "`include[0]`"},
		"top_logprobs":      {hiInput + `,"top_logprobs":-1`, "top_logprobs", "at least 0"},
		"top_logprobs many": {hiInput + `,"top_logprobs":200`, "top_logprobs", ""},
		"effort": {hiInput + `,"reasoning":{"effort":"huge"}`, "reasoning.effort",
			"`reasoning.effort`"},
		"effort number": {hiInput + `,"reasoning":{"effort":1}`, "reasoning.effort",
			"string"},
		"summary": {hiInput + `,"reasoning":{"summary":"detailed"}`,
			"reasoning.summary", "not supported"},
		"reasoning unknown": {hiInput + `,"reasoning":{"mode":"x"}`, "reasoning.mode",
			"not supported"},
		"text unknown": {hiInput + `,"text":{"tone":"x"}`, "text.tone", "not supported"},
		"verbosity": {hiInput + `,"text":{"verbosity":"low"}`, "text.verbosity",
			"medium"},
		"format": {hiInput + `,"text":{"format":{"type":"xml"}}`, "text.format.type",
			"json_schema"},
		"format text": {hiInput + `,"text":{"format":"json"}`, "text.format", "object"},
		"no schema": {hiInput + `,"text":{"format":{"type":"json_schema","name":"a"}}`,
			"text.format", ""},
		"file search": {hiInput + `,"tools":[{"type":"file_search"}]`, "tools",
			`"file_search" is not supported`},
		"namespace": {hiInput + `,"tools":[{"type":"namespace","tools":[]}]`, "tools",
			"`tools[0].name` must be a string"},
		"namespace of nothing": {hiInput + `,"tools":[{"type":"namespace","name":"n"}]`, "tools",
			"`tools[0].tools` must be a list"},
		"namespace in another": {hiInput + `,"tools":[{"type":"namespace","name":"n","tools":[` +
			`{"type":"namespace","name":"m","tools":[]}]}]`, "tools",
			"`tools[0].tools[0]` of type \"namespace\" is not supported"},
		"namespace of custom tools": {hiInput + `,"tools":[{"type":"namespace","name":"n",` +
			`"tools":[{"type":"custom","name":"shell"}]}]`, "tools",
			"`tools[0].tools[0]` is the custom tool"},
		"the same flat name": {hiInput + `,"tools":[{"type":"function","name":"n__f"},` +
			`{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]`, "tools",
			"as that of another tool"},
		"custom tool": {hiInput + `,"tools":[{"type":"custom","name":"shell"}]`, "tools",
			"`tools[0]` is the custom tool \"shell\": this server takes functions"},
		"custom choice": {tool(`"name":"f"`) + `,"tool_choice":{"type":"custom","name":"shell"}`,
			"tool_choice", "`tool_choice` is the custom tool \"shell\""},
		"custom allowed": {tool(`"name":"f"`) + `,"tool_choice":{"type":"allowed_tools",` +
			`"mode":"auto","tools":[{"type":"custom","name":"shell"}]}`, "tool_choice.tools",
			"`tool_choice.tools[0]` is the custom tool \"shell\""},
		"custom call": {`"input":[{"type":"custom_tool_call","call_id":"c","name":"shell",` +
			`"input":"ls"}]`, "input", "is of a custom tool: this server takes functions"},
		"custom output": {`"input":[{"type":"custom_tool_call_output","call_id":"c",` +
			`"output":"x"}]`, "input", "is of a custom tool"},
		"tool number": {hiInput + `,"tools":[1]`, "tools", "`tools[0]` must be an object"},
		"tool without type": {hiInput + `,"tools":[{"name":"f"}]`, "tools",
			"`tools[0].type` is required"},
		"tool without name": {tool(`"parameters":{}`), "tools", "`tools[0].name`"},
		"tool twice": {hiInput +
			`,"tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]`, "tools",
			"another tool"},
		"choice without tool": {hiInput + `,"tool_choice":"required"`, "tool_choice", "tools"},
		"choice of nothing": {tool(`"name":"f"`) +
			`,"tool_choice":{"type":"function","name":"g"}`, "tool_choice", ""},
		"choice of hosted": {tool(`"name":"f"`) + `,"tool_choice":{"type":"file_search"}`,
			"tool_choice", "file_search"},
		"choice no type": {tool(`"name":"f"`) + `,"tool_choice":{}`, "tool_choice",
			"null is not supported"},
		"temperature": {hiInput + `,"temperature":-1`, "temperature", "at least 0"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, s, responses.ResponsesPath, "{"+c.fields+"}", 400, c.param, c.message)
		})
	}
	for path, param := range map[string]string{
		"/v1/responses/x?stream=maybe":               "stream",
		"/v1/responses/x?starting_after=1":           "starting_after",
		"/v1/responses/x?stream=1&starting_after=-1": "starting_after",
		"/v1/responses/x/input_items?limit=0":        "limit",
		"/v1/responses/x/input_items?limit=101":      "limit",
		"/v1/responses/x/input_items?order=up":       "order",
	} {
		if rec := s.do("GET", path, ""); rec.Code != 400 ||
			at(t, object(t, rec.Body.Bytes()), "error", "param") != param {
			t.Errorf("%s answered %d: %s", path, rec.Code, rec.Body)
		}
	}
	refused(t, s, responses.ResponsesPath, `{`+hiInput+`,"previous_response_id":"resp_none"}`, 404,
		"previous_response_id", "not found")
}

func manyPairs(n int) string {
	var pairs []string
	for i := range n {
		pairs = append(pairs, fmt.Sprintf(`"%d":""`, i))
	}
	return strings.Join(pairs, ",")
}

// TestResponsesUnkept: a server that keeps nothing says so where it matters.
func TestResponsesUnkept(t *testing.T) {
	s := newServer(t)
	if got := s.ok(t, responses.ResponsesPath, `{`+hiInput+`}`); got["store"] != false {
		t.Errorf("store is %v", got["store"])
	}
	refused(t, s, responses.ResponsesPath, `{`+hiInput+`,"store":true}`, 400, "store",
		"keeps nothing")
	refused(t, s, responses.ResponsesPath, `{`+hiInput+`,"background":true}`, 400, "background",
		"keeps nothing")
	refused(t, s, responses.ResponsesPath, `{`+hiInput+`,"previous_response_id":"a"}`, 400,
		"previous_response_id", "keeps nothing")
	refused(t, s, responses.ResponsesPath, `{`+hiInput+`,"conversation":"a"}`, 400,
		"conversation", "keeps nothing")
	refused(t, s, responses.InputTokensPath, `{"previous_response_id":"a"}`, 400,
		"previous_response_id", "keeps nothing")
	if rec := s.post(responses.ConversationsPath, `{}`); rec.Code != 404 ||
		!strings.Contains(rec.Body.String(), "keeps nothing") {
		t.Errorf("a conversation: %d %s", rec.Code, rec.Body)
	}
	if rec := s.do("GET", "/v1/responses/resp_1", ""); rec.Code != 404 {
		t.Errorf("answered %d", rec.Code)
	}
}

// TestResponsesPrompt: items become the messages that chat would have.
func TestResponsesPrompt(t *testing.T) {
	s := newServer(t, withTemplate(t,
		"{{ messages | tojson }}{{ tools | tojson }}{{ reasoning_effort }}"), keeping(t,
		store.Options{}), func(o *Options) { o.Info.MaxModelLen = 2048 })
	t.Cleanup(s.Close)
	for body, want := range map[string]string{
		`"input":"hi"`: `[{"role": "user", "content": "hi"}]null`,
		`"instructions":"be brief","input":[{"role":"developer","content":"x"},{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}],"reasoning":{"effort":"low"}`: `[{"role": "system", "content": "be brief"}, {"role": "system", "content": "x"}, {"role": "user", "content": "a\nb"}]nulllow`,
		`"input":[{"role":"user","content":"hi"},{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"content":null},` +
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"so"},{"type":"refusal","refusal":"no"}]},` +
			`{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},` +
			`{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"7"}]},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}],` +
			`"tools":[{"type":"function","name":"f","strict":null,"parameters":{"type":"object"}}],"tool_choice":"none"`: `[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "sono", "reasoning": "hm", "reasoning_content": "hm", "tool_calls": [` +
			`{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}, {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]}, ` +
			`{"role": "tool", "tool_call_id": "c1", "content": "7"}, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]` +
			`[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]`,
	} {
		s.ok(t, responses.ResponsesPath, "{"+body+"}")
		if text := rendered(t, s); text != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, text, want)
		}
	}
}

// TestNamespaces: Codex has functions in namespaces, and offers a search of the web. The model
// knows a function by both names; calls have them apart, in events and when they come back, too.
func TestNamespaces(t *testing.T) {
	s := newServer(t, withTemplate(t, "{# <tool_call>{\"name\": \"f\", \"arguments\": {}}"+
		"</tool_call> #}{% for m in messages %}{{ m | tojson }}{% endfor %}{{ tools | tojson }}"),
		keeping(t, store.Options{}), answering(sample.FinishStop, "<tool_call>\n"+
			`{"name": "n__f", "arguments": {"x": 1}}`+"\n</tool_call>"),
		func(o *Options) { o.Info.MaxModelLen = 2048 })
	t.Cleanup(s.Close)
	long := strings.Repeat("n", 60)
	s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"tools":[{"type":"namespace","name":"`+long+
		`","tools":[{"type":"function","name":"`+long+`"}]}]}`)
	const tools = `"tools":[{"type":"web_search","external_web_access":true},` +
		`{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f",` +
		`"strict":false,"parameters":{"type":"object"}}]},{"type":"function","name":"f"}]`
	const shown = `[{"type": "function", "function": {"name": "n__f", "strict": false, ` +
		`"parameters": {"type": "object"}}}, {"type": "function", "function": {"name": "f"}}]`
	const call = `"name":"f","namespace":"n","arguments":"{\"x\": 1}"`
	first := s.post(responses.ResponsesPath, `{`+hiInput+`,`+tools+`}`)
	if first.Code != 200 || !strings.Contains(first.Body.String(), call) {
		t.Fatalf("answered %d %s", first.Code, first.Body)
	}
	if text := rendered(t, s); !strings.HasSuffix(text, shown) {
		t.Errorf("the model reads %s", text)
	}
	events := s.post(responses.ResponsesPath, `{`+hiInput+`,"stream":true,`+tools+`}`).Body.String()
	for _, want := range []string{`"name":"f","namespace":"n","arguments":""}`, call,
		`"name":"f","arguments":"{\"x\": 1}"`} {
		if !strings.Contains(events, want) {
			t.Errorf("no event has %s: %s", want, events)
		}
	}
	const said = `"tool_calls": [{"id": "c", "type": "function", "function": {"name": "n__f", ` +
		`"arguments": {"x": 1}}}]`
	s.ok(t, responses.ResponsesPath, `{"input":[{"role":"user","content":"a"},`+
		`{"type":"function_call","call_id":"c",`+call+`}],`+tools+`}`)
	if text := rendered(t, s); !strings.Contains(text, said) {
		t.Errorf("the model reads %s", text)
	}
	s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"previous_response_id":"`+
		object(t, first.Body.Bytes())["id"].(string)+`"}`)
	if text := rendered(t, s); !strings.Contains(text, `"name": "n__f"`) {
		t.Errorf("the model reads of what it called %s", text)
	}
	// Nothing is left of tools that are left out.
	s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"tools":[{"type":"web_search"}],`+
		`"tool_choice":"auto"}`)
}

// TestKeptItems: a conversation that is gone on from reads as it did, whatever its items were.
func TestKeptItems(t *testing.T) {
	s := newServer(t, withTemplate(t, "{% for m in messages %}{{ m | tojson }}{% endfor %}"),
		keeping(t, store.Options{}), func(o *Options) { o.Info.MaxModelLen = 2048 })
	t.Cleanup(s.Close)
	const call = `{"type":"function_call","call_id":"c","name":"f","namespace":"n",` +
		`"arguments":"{"},`
	for _, items := range []string{
		`{"role":"developer","content":"a"},{"role":"user","content":[{"type":"input_text",` +
			`"text":"b"},{"type":"input_text","text":"c"}]}`,
		`{"type":"reasoning","summary":[{"type":"summary_text","text":"a"},` +
			`{"type":"summary_text","text":"b"}]},{"role":"assistant","content":[` +
			`{"type":"output_text","text":"c"},{"type":"refusal","refusal":"d"}]}`,
		call + `{"type":"function_call_output","call_id":"c","output":"a"}`,
		call + `{"type":"function_call_output","call_id":"c","output":[]}`,
		call + `{"type":"function_call_output","call_id":"c","output":[{"type":"input_text",` +
			`"text":"a"},{"type":"input_text","text":"b"}]}`,
	} {
		first := s.ok(t, responses.ResponsesPath, `{"input":[`+items+`]}`)
		before := rendered(t, s)
		s.ok(t, responses.ResponsesPath, `{"input":"x","previous_response_id":"`+
			first["id"].(string)+`"}`)
		if after := rendered(t, s); !strings.HasPrefix(after, before) {
			t.Errorf("%s\nreads  %s\nafter  %s", items, before, after)
		}
	}
}

// TestReferences: clients (Vercel's AI SDK) name items of stored responses by their ids.
func TestReferences(t *testing.T) {
	s := newServer(t, withTemplate(t,
		"{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"),
		keeping(t, store.Options{}), func(o *Options) {
			o.Config.Server.APIKeys = []string{"one", "two"}
			o.Config.Server.MaxRequestBodyBytes = 100_000
			o.Info.MaxModelLen = 2048
		})
	t.Cleanup(s.Close)
	ask := func(key, path, body string) (map[string]any, int) {
		rec := s.do("POST", path, "{"+body+"}", "Authorization", "Bearer "+key)
		return object(t, rec.Body.Bytes()), rec.Code
	}
	itemOf := func(response map[string]any) string {
		return response["output"].([]any)[0].(map[string]any)["id"].(string)
	}
	first, _ := ask("one", responses.ResponsesPath, `"input":"a"`)
	item := itemOf(first)
	input := `"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"` + item +
		`"},{"role":"user","content":"b"},{"id":"` + item + `"},{"role":"user","content":"c"}]`
	second, code := ask("one", responses.ResponsesPath, input)
	const want = "user:a;assistant: hello world;user:b;assistant: hello world;user:c;"
	if text := rendered(t, s); code != 200 || text != want {
		t.Errorf("answered %d after %q", code, text)
	}
	_, code = ask("one", responses.ResponsesPath, `"input":"d","previous_response_id":"`+
		second["id"].(string)+`"`)
	if text := rendered(t, s); code != 200 || text != want+"assistant: hello world;user:d;" {
		t.Errorf("went on with %d after %q", code, text)
	}
	if _, code := ask("one", responses.InputTokensPath, input); code != 200 {
		t.Errorf("its tokens are counted with %d", code)
	}
	if itemOf(second) == item {
		t.Errorf("two responses have an item %s", item)
	}
	secret, _ := ask("one", responses.ResponsesPath, `"input":"a","store":false`)
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{strings.Repeat("hello ", 400)},
			sample.FinishStop)}
	}
	long, _ := ask("one", responses.ResponsesPath, `"input":"a"`)
	for name, c := range map[string]struct {
		key, path, body, message string
		code                     int
	}{
		"another key": {"two", responses.ResponsesPath, input, "Item with id '" + item, 404},
		"not stored": {"one", responses.ResponsesPath,
			`"input":[{"type":"item_reference","id":"` + itemOf(secret) + `"}]`, "not found", 404},
		"another item": {"one", responses.ResponsesPath,
			`"input":[{"type":"item_reference","id":"` + item + `0"}]`, "not found", 404},
		"of no response": {"one", responses.ResponsesPath,
			`"input":[{"type":"item_reference","id":"msg_1"}]`, "not found", 404},
		"a conversation": {"one", responses.ConversationsPath,
			`"items":[{"type":"item_reference","id":"` + item + `"}]`,
			"`items[0]` is a reference", 400},
		// Each is short, and stands for a text that is not.
		"too often": {"one", responses.ResponsesPath, `"truncation":"auto","input":[{"id":"` +
			itemOf(long) + strings.Repeat(`"},{"id":"`+itemOf(long), 50) + `"}]`, "too long", 400},
	} {
		answer, code := ask(c.key, c.path, c.body)
		if code != c.code || !strings.Contains(fmt.Sprint(answer["error"]), c.message) {
			t.Errorf("%s: %d, %v", name, code, answer)
		}
	}
}

// TestConversations: a response goes on from what was said before it, and from no one else's.
func TestConversations(t *testing.T) {
	s := newServer(t, withTemplate(t,
		"{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"), keeping(t,
		store.Options{}), func(o *Options) {
		o.Config.Server.APIKeys = []string{"one", "two"}
		o.Info.MaxModelLen = 2048
	})
	t.Cleanup(s.Close)
	ask := func(key, body string) (map[string]any, int) {
		rec := s.do("POST", responses.ResponsesPath, "{"+body+"}", "Authorization", "Bearer "+key)
		return object(t, rec.Body.Bytes()), rec.Code
	}
	first, _ := ask("one", `"input":"a","instructions":"gone"`)
	second, _ := ask("one", `"input":"b","previous_response_id":"`+first["id"].(string)+`"`)
	third, code := ask(
		"one", `"input":"c","instructions":"x","previous_response_id":"`+second["id"].(string)+`"`)
	if text := rendered(t, s); code != 200 || third["previous_response_id"] != second["id"] ||
		text != "system:x;user:a;assistant: hello world;user:b;assistant: hello world;user:c;" {
		t.Errorf("answered %d after %q", code, text)
	}
	if _, code = ask("two", `"input":"c","previous_response_id":"`+second["id"].(string)+`"`); code != 404 {
		t.Errorf("another key's conversation: %d", code)
	}
	path := responses.ResponsesPath + "/" + first["id"].(string)
	for _, c := range []struct{ method, path string }{{"GET", path}, {"DELETE", path},
		{"POST", path + "/cancel"}, {"GET", path + "/input_items"}, {"GET", path +
			"?stream=true"}} {
		if rec := s.do(c.method, c.path, "", "Authorization", "Bearer two"); rec.Code != 404 {
			t.Errorf("%s %s with another key: %d", c.method, c.path, rec.Code)
		}
	}
	if rec := s.do("DELETE", path, "", "Authorization", "Bearer one"); rec.Code != 200 {
		t.Errorf("delete answered %d", rec.Code)
	}
	if _, code = ask("one", `"input":"c","previous_response_id":"`+second["id"].(string)+`"`); code != 404 {
		t.Errorf("a conversation whose beginning is deleted: %d", code)
	}
}

// TestConversationsAreBounded: by the bytes of a request's body, whatever they are made of.
func TestConversationsAreBounded(t *testing.T) {
	s := newServer(t, withTemplate(t, "x"), keeping(t, store.Options{}), func(o *Options) {
		o.Config.Server.MaxRequestBodyBytes = 10000
	})
	t.Cleanup(s.Close)
	body := `{"input":"` + strings.Repeat("a", 3000) + `"`
	id, turns := s.ok(t, responses.ResponsesPath, body+`}`)["id"], 1
	for ; ; turns++ {
		rec := s.post(responses.ResponsesPath, fmt.Sprintf(`%s,"previous_response_id":"%v"}`, body,
			id))
		if rec.Code == 400 {
			if !strings.Contains(rec.Body.String(), "too long") {
				t.Errorf("answered %s", rec.Body)
			}
			break
		}
		if turns > 5 {
			t.Fatal("nothing bounds the conversation")
		}
		id = object(t, rec.Body.Bytes())["id"]
	}
}

// hanging plays a first piece of an answer, and no more until the gate opens.
func hanging(gate chan struct{}) func(*Options) {
	return func(o *Options) {
		o.Engine = &fakeEngine{play: func(n int, r *engine.Request) script {
			return script{deltas: say(r, []int32{300, 301}, []string{"so ", "much"},
				sample.FinishStop), gate: gate}
		}}
	}
}

// statusOf is the status of a response now.
func (s *testServer) statusOf(t *testing.T, id any) any {
	t.Helper()
	rec := s.do("GET", fmt.Sprintf("%s/%v", responses.ResponsesPath, id), "")
	if rec.Code != 200 {
		t.Fatalf("%v: %d %s", id, rec.Code, rec.Body)
	}
	return object(t, rec.Body.Bytes())["status"]
}

// TestBackground: an answer that no client waits for can be had later, and from any of its events
// on.
func TestBackground(t *testing.T) {
	gate := make(chan struct{})
	s := newServer(t, hanging(gate), keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	server := listen(t, s)
	resp, err := http.Post(server.URL+responses.ResponsesPath, "application/json",
		strings.NewReader(`{`+hiInput+`,"background":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	id := ""
	for id == "" && lines.Scan() {
		if data, found := strings.CutPrefix(lines.Text(), "data: "); found {
			id = at(t, object(t, []byte(data)), "response", "id").(string)
		}
	}
	if got := s.statusOf(t, id); got != "queued" {
		t.Errorf("status %v", got)
	}
	if rec := s.post(responses.ResponsesPath,
		`{`+hiInput+`,"previous_response_id":"`+id+`"}`); rec.Code != 400 ||
		!strings.Contains(rec.Body.String(), "not complete") {
		t.Errorf("going on from it: %d %s", rec.Code, rec.Body)
	}
	resp.Body.Close() // it goes on without its client
	close(gate)
	follow := s.do("GET", responses.ResponsesPath+"/"+id+"?stream=true&starting_after=2", "")
	var kinds []string
	for _, e := range strings.Split(strings.TrimSpace(follow.Body.String()), "\n\n") {
		_, data, _ := strings.Cut(e, "data: ")
		event := object(t, []byte(data))
		if want := float64(len(kinds) + 3); event["sequence_number"] != want {
			t.Errorf("event %v instead of %v", event["sequence_number"], want)
		}
		kinds = append(kinds, event["type"].(string))
	}
	if len(kinds) != 8 || kinds[0] != "response.output_item.added" ||
		kinds[7] != "response.completed" {
		t.Errorf("events %v", kinds)
	}
	s.Close()
	if got := s.statusOf(t, id); got != "completed" {
		t.Errorf("status %v", got)
	}
	again := s.do("GET", responses.ResponsesPath+"/"+id+"?stream=true&starting_after=2", "")
	if again.Body.String() != follow.Body.String() {
		t.Errorf("the events that are kept are\n%s instead of\n%s", again.Body, follow.Body)
	}
	if after := s.do("GET", responses.ResponsesPath+"/"+id+"?stream=true&starting_after=99",
		""); after.Code != 200 || after.Body.Len() != 0 {
		t.Errorf("after the last event: %d %s", after.Code, after.Body)
	}
	if rec := s.post(responses.ResponsesPath, `{`+hiInput+`,"background":true}`); rec.Code != 503 {
		t.Errorf("a server that ends: %d %s", rec.Code, rec.Body)
	}
}

// TestBackgroundYields: a response in the background costs its client's other requests neither
// their turn nor their number, and has bounds of its own.
func TestBackgroundYields(t *testing.T) {
	gate := make(chan struct{})
	s := newServer(t, keeping(t, store.Options{}), func(o *Options) {
		o.Config.Server.MaxRequestsPerKey, o.Config.Schedule.MaxNumQueuedReqs = 2, 3
		o.Config.Server.APIKeys = []string{"a", "b"}
	})
	s.engine.play = func(n int, r *engine.Request) script {
		held := sayHello(n, r)
		if r.Background {
			held.gate = gate
		}
		return held
	}
	t.Cleanup(s.Close)
	ask := func(key, more string) *httptest.ResponseRecorder {
		return s.do("POST", responses.ResponsesPath, `{`+hiInput+more+`}`, "Authorization",
			"Bearer "+key)
	}
	for i := range 2 {
		if rec := ask("a", `,"background":true`); rec.Code != http.StatusOK {
			t.Fatalf("in the background: %d %s", rec.Code, rec.Body)
		}
		if r := s.engine.requests[i]; !r.Background {
			t.Error("the engine does not know that it is in the background")
		}
	}
	if rec := ask("a", ""); rec.Code != http.StatusOK || s.engine.requests[2].Background {
		t.Errorf("beside them: %d %s", rec.Code, rec.Body)
	}
	if rec := ask("a", `,"background":true`); rec.Code != 429 ||
		!strings.Contains(rec.Body.String(), "are in the background") {
		t.Errorf("a third of the client: %d %s", rec.Code, rec.Body)
	}
	if rec := ask("b", `,"background":true`); rec.Code != http.StatusOK {
		t.Errorf("another client: %d %s", rec.Code, rec.Body)
	}
	if rec := ask("b", `,"background":true`); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("more than the server takes: %d %s", rec.Code, rec.Body)
	}
	close(gate)
	s.Close()
	if n := s.InFlight(); n != 0 {
		t.Errorf("%d are in flight", n)
	}
}

// TestCancel: what is cancelled ends, frees what it held, and stays as it is.
func TestCancel(t *testing.T) {
	s := newServer(t, hanging(make(chan struct{})), keeping(t, store.Options{}), func(o *Options) {
		o.Config.Server.MaxRequestsPerKey = 2
	})
	t.Cleanup(s.Close)
	first := s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"background":true}`)
	if first["status"] != "queued" {
		t.Errorf("status %v", first["status"])
	}
	var second map[string]any
	for after := 1e-3; second == nil; after *= 2 { // its time may be over before it is queued
		rec := s.post(responses.ResponsesPath, fmt.Sprintf(`{%s,"background":true,"timeout":%g}`,
			hiInput, after))
		if rec.Code == http.StatusOK {
			second = object(t, rec.Body.Bytes())
		} else if rec.Code != http.StatusRequestTimeout || after > 60 {
			t.Fatalf("%d: %s", rec.Code, rec.Body)
		}
	}
	path := func(of map[string]any) string {
		return fmt.Sprintf("%s/%v", responses.ResponsesPath,
			of["id"])
	}
	for range 2 { // the second time nothing changes
		rec := s.post(path(first)+"/cancel", "")
		if got := object(t, rec.Body.Bytes()); rec.Code != 200 || got["status"] != "cancelled" {
			t.Errorf("cancelled: %d %v", rec.Code, got)
		}
	}
	settled(t, s, second)
	rec := s.do("GET", path(second), "")
	if got := rec.Body.String(); !strings.Contains(got, "time is over") || s.statusOf(t,
		second["id"]) != "failed" {
		t.Errorf("a response whose time is over: %s", got)
	}
	third := s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"background":true}`)
	if rec := s.do("DELETE", path(third), ""); rec.Code != 200 {
		t.Errorf("delete of one that is under way: %d %s", rec.Code, rec.Body)
	}
	if rec := s.do("GET", path(third), ""); rec.Code != 404 {
		t.Errorf("a deleted one: %d", rec.Code)
	}
	s.Close()
	if n := s.engine.open.Load(); n != 0 || s.InFlight() != 0 {
		t.Errorf("%d streams are open, load %d", n, s.InFlight())
	}
}

// TestResponsesOutliveTheServer: another server with the same folder knows them. One that was under
// way has failed.
func TestResponsesOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	o := store.Options{Now: func() time.Time { return now }}
	open := func(change ...func(*Options)) (*testServer, *store.Store) {
		kept := store.New(dir, o)
		s := newServer(t, append(change, func(o *Options) { o.Responses = kept })...)
		return s, kept
	}
	s, kept := open(hanging(make(chan struct{})))
	running := s.ok(t, responses.ResponsesPath, `{`+hiInput+`,"background":true}`)["id"]
	crashed, err := kept.Get("response/all/" + running.(string))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if got := s.statusOf(t, running); got != "failed" {
		t.Errorf("a response whose server was closed is %v", got)
	}
	// A server that is killed leaves what it wrote at first.
	if err := kept.Put("response/all/"+running.(string), crashed, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	kept.Close()

	s, kept = open()
	if got := s.statusOf(t, running); got != "failed" {
		t.Errorf("a response whose server was killed is %v", got)
	}
	done := s.ok(t, responses.ResponsesPath, `{`+hiInput+`}`)["id"]
	s.Close()
	kept.Close()

	s, kept = open()
	defer kept.Close()
	defer s.Close()
	if got := s.statusOf(t, done); got != "completed" {
		t.Errorf("status %v", got)
	}
	s.ok(t, responses.ResponsesPath, fmt.Sprintf(`{%s,"previous_response_id":"%v"}`, hiInput, done))
	now = now.Add(30*24*time.Hour + time.Minute)
	if rec := s.do("GET", fmt.Sprintf("%s/%v", responses.ResponsesPath, done),
		""); rec.Code != 404 {
		t.Errorf("an expired response: %d", rec.Code)
	}
}

// TestResponsesMakeRoom: a full store loses the oldest of the client that has the most, and no
// other's.
func TestResponsesMakeRoom(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{MaxBytes: 64 << 10}), func(o *Options) {
		o.Config.Server.APIKeys = []string{"one", "two"}
	})
	t.Cleanup(s.Close)
	create := func(key string) string {
		rec := s.do("POST", responses.ResponsesPath,
			`{`+hiInput+`,"metadata":{"k":"`+strings.Repeat("v", 500)+`"}}`, "Authorization",
			"Bearer "+key)
		got := object(t, rec.Body.Bytes())
		if rec.Code != 200 || got["store"] != true {
			t.Fatalf("answered %d: %s", rec.Code, rec.Body)
		}
		return got["id"].(string)
	}
	there := func(key, id string) bool {
		return s.do("GET", responses.ResponsesPath+"/"+id, "", "Authorization",
			"Bearer "+key).Code == 200
	}
	mine := create("two")
	var ids []string
	for range 60 {
		ids = append(ids, create("one"))
	}
	if !there("two", mine) || there("one", ids[0]) || !there("one", ids[len(ids)-1]) {
		t.Errorf("two's is there: %v; one's first: %v, last: %v", there("two", mine),
			there("one", ids[0]), there("one", ids[len(ids)-1]))
	}
}

// TestResponseFails: what goes wrong in the middle is in the stream's last event.
func TestResponseFails(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{}), func(o *Options) {
		o.Engine = &fakeEngine{play: func(i int, r *engine.Request) script {
			return script{deltas: sayHello(i, r).deltas[:1], err: fmt.Errorf("%w: rank 0 died",
				engine.ErrFailed)}
		}}
	})
	t.Cleanup(s.Close)
	if rec := s.post(responses.ResponsesPath, `{`+hiInput+`}`); rec.Code != 500 ||
		!strings.Contains(rec.Body.String(), "rank 0 died") {
		t.Errorf("answered %d: %s", rec.Code, rec.Body)
	}
	body := s.post(responses.ResponsesPath, `{`+hiInput+`,"stream":true}`).Body.String()
	list := strings.Split(strings.TrimSpace(body), "\n\n")
	_, data, _ := strings.Cut(list[len(list)-1], "data: ")
	last := object(t, []byte(data))
	if last["type"] != "response.failed" || at(t, last, "response", "error",
		"code") != "server_error" || !strings.Contains(at(t, last, "response", "error",
		"message").(string), "rank 0 died") || at(t, last, "response", "output", 0,
		"status") != "incomplete" {
		t.Errorf("the last event is %v", last)
	}
	if got := s.statusOf(t, at(t, last, "response", "id")); got != "failed" {
		t.Errorf("status %v", got)
	}
}

func FuzzResponses(f *testing.F) {
	s := newServer(f, hermesTemplate, keeping(f, store.Options{MaxBytes: 1 << 20}))
	for _, seed := range []string{`{"input":"hi"}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"stream":true}`,
		`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"}],"tools":[{"type":"function","name":"f"}]}`,
		`{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]}`,
		`{"input":"x","text":{"format":{"type":"json_schema","name":"a","schema":{}}},"reasoning":{"effort":"low"},"metadata":{"a":"b"},"include":["reasoning.encrypted_content"]}`,
		`{"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if strings.Contains(body, "background") {
			return // ends whenever it does
		}
		checkAnswer(t, s, responses.ResponsesPath, body, func(rec *httptest.ResponseRecorder) {
			namedEvents(t, rec.Body.String())
		})
	})
}
