package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// shown renders every message as role:content;.
const shown = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"

// talk makes a conversation and returns its path.
func (s *testServer) talk(t *testing.T, body string) (id, path string) {
	t.Helper()
	id, _ = s.ok(t, responses.ConversationsPath, body)["id"].(string)
	if !strings.HasPrefix(id, "conv_") {
		t.Fatalf("a conversation is named %q", id)
	}
	return id, responses.ConversationsPath + "/" + id
}

// get answers a GET, which succeeds.
func (s *testServer) get(t *testing.T, path string) map[string]any {
	t.Helper()
	rec := s.do("GET", path, "")
	if rec.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, rec.Code, rec.Body)
	}
	return object(t, rec.Body.Bytes())
}

// said are the texts of a list of items, and names their ids.
func said(t *testing.T, list map[string]any) (texts, names []string) {
	t.Helper()
	for _, v := range list["data"].([]any) {
		texts = append(texts, at(t, v, "content", 0, "text").(string))
		names = append(names, at(t, v, "id").(string))
	}
	return texts, names
}

// TestConversationObjects: a conversation is made, shown, changed and deleted, and so are its
// items, in OpenAI's shapes.
func TestConversationObjects(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	id, path := s.talk(t, `{"metadata":{"a":"b"},"items":[{"role":"user","content":"one"},`+
		`{"type":"message","role":"assistant","content":"two"}]}`)
	same(t, s.get(t, path), `{"id":"`+id+`","object":"conversation","metadata":{"a":"b"}}`,
		"created_at")
	changed := s.ok(t, path, `{"metadata":{"c":"d"}}`)
	same(t, changed, `{"id":"`+id+`","object":"conversation","metadata":{"c":"d"}}`, "created_at")
	added := s.ok(t, path+"/items", `{"items":[{"role":"user","content":"three"},`+
		`{"role":"user","id":"msg_4","content":[{"type":"input_text","text":"four"}]}]}`)
	if texts, _ := said(t, added); fmt.Sprint(texts) != "[three four]" ||
		added["has_more"] != false || added["last_id"] != "msg_4" || added["object"] != "list" {
		t.Errorf("added %v", added)
	}
	one := s.get(t, path+"/items/msg_4")
	same(t, one, `{"id":"msg_4","type":"message","status":"completed","role":"user",`+
		`"content":[{"type":"input_text","text":"four"}]}`)

	all := s.get(t, path+"/items?order=asc")
	texts, names := said(t, all)
	if fmt.Sprint(texts) != "[one two three four]" {
		t.Errorf("items %v", texts)
	}
	for query, want := range map[string]string{
		"": "[four three two one]", "?limit=2": "[four three]",
		"?order=asc&limit=2&after=" + names[0]: "[two three]", "?after=" + names[1]: "[one]",
	} {
		list := s.get(t, path+"/items"+query)
		texts, ids := said(t, list)
		if fmt.Sprint(texts) != want || list["first_id"] != ids[0] ||
			list["last_id"] != ids[len(ids)-1] ||
			list["has_more"] != strings.Contains(query, "limit") {
			t.Errorf("%s: %v of %v", query, texts, list)
		}
	}
	gone := s.do("DELETE", path+"/items/"+names[1], "")
	same(t, object(t, gone.Body.Bytes()), `{"id":"`+id+`","object":"conversation",`+
		`"metadata":{"c":"d"}}`, "created_at")
	if texts, _ := said(t, s.get(t, path+"/items")); fmt.Sprint(texts) != "[four three one]" {
		t.Errorf("without one: %v", texts)
	}
	deleted := s.do("DELETE", path, "")
	same(t, object(t, deleted.Body.Bytes()),
		`{"id":"`+id+`","object":"conversation.deleted","deleted":true}`)
	for _, c := range []struct{ method, path, body string }{{"GET", path, ""},
		{"DELETE", path, ""}, {"POST", path, `{"metadata":{}}`}, {"GET", path + "/items", ""},
		{"POST", path + "/items", `{"items":[]}`}, {"GET", path + "/items/msg_4", ""},
		{"POST", responses.ResponsesPath, `{` + hiInput + `,"conversation":"` + id + `"}`}} {
		if rec := s.do(c.method, c.path, c.body); rec.Code != http.StatusNotFound ||
			!strings.Contains(rec.Body.String(), "Conversation with id") {
			t.Errorf("%s %s of a deleted one: %d %s", c.method, c.path, rec.Code, rec.Body)
		}
	}
}

// TestConversationRefusals: what is wrong is named.
func TestConversationRefusals(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{}), func(o *Options) {
		o.Config.Server.MaxRequestBodyBytes = 4000
	})
	t.Cleanup(s.Close)
	_, path := s.talk(t, `{"items":[{"role":"user","id":"msg_1","content":"x"}]}`)
	long := `{"items":[{"role":"user","content":"` + strings.Repeat("a", 3000) + `"}]}`
	s.ok(t, path+"/items", long)
	for _, c := range []struct{ path, body, param, message string }{
		{responses.ConversationsPath, `{"items":5}`, "items", "must be an array"},
		{responses.ConversationsPath, `{"items":[{"type":"web_search_call"}]}`, "items",
			"`items[0]` of type"},
		{responses.ConversationsPath, `{"metadata":{"a":1}}`, "metadata", "must be a string"},
		{responses.ConversationsPath, `{"items":[{"role":"user","id":"a","content":"x"},` +
			`{"role":"user","id":"a","content":"x"}]}`, "items", "Duplicate item found with id a"},
		{path, `{}`, "metadata", "required"},
		{path + "/items", `{}`, "items", "required"},
		{path + "/items", `{"items":[{"role":"user","id":"msg_1","content":"x"}]}`, "items",
			"has an item of id msg_1"},
		{path + "/items", long, "items", "too long: at most 4000 bytes"},
	} {
		refused(t, s, c.path, c.body, 400, c.param, c.message)
	}
	for _, query := range []string{"?limit=0", "?limit=101", "?order=up"} {
		if rec := s.do("GET", path+"/items"+query, ""); rec.Code != 400 {
			t.Errorf("%s: %d %s", query, rec.Code, rec.Body)
		}
	}
	if rec := s.do("GET", path+"/items/msg_9", ""); rec.Code != 404 ||
		!strings.Contains(rec.Body.String(), "Item with id 'msg_9' not found") {
		t.Errorf("an item that is not there: %d %s", rec.Code, rec.Body)
	}
}

// TestManyItems: what many items cost grows as they do: of none that come, and of no pieces of a
// message, all that were before are gone through.
func TestManyItems(t *testing.T) {
	s := newServer(t, withTemplate(t, "short"), keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	_, path := s.talk(t, `{}`)
	const n = 20_000
	list := func(first, item string) string {
		return "[" + first + item + strings.Repeat(","+item, n-1) + "]"
	}
	call := `{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},`
	for name, c := range map[string]struct{ path, body string }{
		"items": {path + "/items", `{"items":` + list("", `{"role":"user","content":"a"}`) + `}`},
		"reasoning": {responses.ResponsesPath, `{"store":false,"input":` + list("",
			`{"type":"reasoning","summary":[{"type":"summary_text","text":"`+
				strings.Repeat("b", 400)+`"}]}`) + `}`},
		"behind a call": {responses.ResponsesPath, `{"store":false,"input":` + list(call,
			`{"role":"assistant","content":"`+strings.Repeat("b", 400)+`"}`) + `}`},
	} {
		begun := time.Now()
		s.ok(t, c.path, c.body)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// TestResponsesInConversations: a response goes on in a conversation, to which its input and output
// are added once it is complete.
func TestResponsesInConversations(t *testing.T) {
	s := newServer(t, withTemplate(t, shown), keeping(t, store.Options{}), func(o *Options) {
		o.Info.MaxModelLen = 2048
		o.Config.Server.APIKeys = []string{"one", "two"}
	})
	t.Cleanup(s.Close)
	ask := func(key, path, body string) *httptest.ResponseRecorder {
		return s.do("POST", path, body, "Authorization", "Bearer "+key)
	}
	made := ask("one", responses.ConversationsPath,
		`{"items":[{"role":"developer","content":"be brief"}]}`)
	id := object(t, made.Body.Bytes())["id"].(string)
	in := `,"conversation":"` + id + `"`
	first := object(t, ask("one", responses.ResponsesPath, `{"input":"a"`+in+`}`).Body.Bytes())
	if at(t, first, "conversation", "id") != id {
		t.Errorf("conversation %v", first["conversation"])
	}
	// A stream, kept nowhere else, with the other form of the field.
	ask("one", responses.ResponsesPath,
		`{"input":"b","store":false,"stream":true,"conversation":{"id":"`+id+`"}}`)
	if rec := ask("one", responses.ResponsesPath, `{"conversation":"`+id+`"}`); rec.Code != 200 {
		t.Errorf("without input: %d %s", rec.Code, rec.Body)
	}
	rec := ask("one", responses.ResponsesPath, `{"input":"c","instructions":"x"`+in+`}`)
	want := "system:x;system:be brief;user:a;assistant: hello world;user:b;" +
		"assistant: hello world;assistant: hello world;user:c;"
	if text := rendered(t, s); rec.Code != 200 || text != want {
		t.Errorf("%d after %q", rec.Code, text)
	}
	counted := ask("one", responses.InputTokensPath, `{"input":"d"`+in+`}`)
	n := object(t, counted.Body.Bytes())["input_tokens"]
	ask("one", responses.ResponsesPath, `{"input":"d"`+in+`}`)
	if got := float64(len(s.engine.last(t).Prompt)); n != got {
		t.Errorf("%v tokens are counted, %v read", n, got)
	}
	if rec := ask("two", responses.ResponsesPath, `{"input":"c"`+in+`}`); rec.Code != 404 {
		t.Errorf("another key's conversation: %d", rec.Code)
	}
	refusedAs := func(body, param, code string) {
		t.Helper()
		rec := ask("one", responses.ResponsesPath, body)
		e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
		if rec.Code != 400 || e["param"] != param || e["code"] != code {
			t.Errorf("%d %v", rec.Code, e)
		}
	}
	refusedAs(`{"input":"c","previous_response_id":"`+first["id"].(string)+`"`+in+`}`,
		"previous_response_id", "mutually_exclusive_parameters")
	taken := at(t, first, "output", 0, "id").(string)
	refused := ask("one", responses.ResponsesPath,
		`{"input":[{"role":"assistant","id":"`+taken+`","content":"x"}]`+in+`}`)
	if refused.Code != 400 || !strings.Contains(refused.Body.String(), "Duplicate item found") {
		t.Errorf("an item twice: %d %s", refused.Code, refused.Body)
	}
	s.engine.play = func(i int, r *engine.Request) script {
		// While this one is answered.
		refusedAs(`{"input":"e"`+in+`}`, "conversation", "conversation_locked")
		s.engine.play = nil
		return script{deltas: sayHello(i, r).deltas[:1], err: engine.ErrFailed}
	}
	before := len(s.engine.requests)
	if rec := ask("one", responses.ResponsesPath, `{"input":"f"`+in+`}`); rec.Code != 500 {
		t.Errorf("a response that fails: %d", rec.Code)
	}
	if n := len(s.engine.requests) - before; n != 1 {
		t.Fatalf("%d requests, one of them beside another in the same conversation", n)
	}
	ask("one", responses.ResponsesPath, `{"input":"g"`+in+`}`)
	if text := rendered(t, s); !strings.HasSuffix(text, "user:d;assistant: hello world;user:g;") {
		t.Errorf("after one that failed: %q", text)
	}
}

// TestConversationsOutliveTheServer: another server with the same folder knows them; a response in
// the background is in its conversation.
func TestConversationsOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	open := func() (*testServer, *store.Store) {
		kept := store.New(dir, store.Options{})
		return newServer(t, withTemplate(t, shown), func(o *Options) { o.Responses = kept }), kept
	}
	s, kept := open()
	id, path := s.talk(t, `{}`)
	job := s.ok(t, responses.ResponsesPath,
		`{"input":"a","background":true,"conversation":"`+id+`"}`)
	settled(t, s, job)
	s.ok(t, responses.ResponsesPath, `{"input":"b","conversation":"`+id+`"}`)
	s.Close()
	kept.Close()

	s, kept = open()
	defer kept.Close()
	defer s.Close()
	texts, _ := said(t, s.get(t, path+"/items?order=asc"))
	if fmt.Sprint(texts) != "[a  hello world b  hello world]" {
		t.Errorf("after a restart: %v", texts)
	}
}

// TestConversationsMakeRoom: a full store loses what was used least recently of the client that has
// the most, and never a part of a conversation.
func TestConversationsMakeRoom(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{MaxBytes: 64 << 10}))
	t.Cleanup(s.Close)
	id, path := s.talk(t, `{}`)
	_, idle := s.talk(t, `{"items":[{"role":"user","content":"x"}]}`)
	for range 60 {
		s.ok(t, path, `{"metadata":{"a":"b"}}`)
		s.ok(t, responses.ResponsesPath,
			`{`+hiInput+`,"metadata":{"k":"`+strings.Repeat("v", 500)+`"}}`)
	}
	if got := s.get(t, path); got["id"] != id {
		t.Errorf("one in use: %v", got)
	}
	if rec := s.do("GET", idle, ""); rec.Code != 404 {
		t.Errorf("one that nobody used: %d", rec.Code)
	}
}

// TestInputTokens counts what the model would read.
func TestInputTokens(t *testing.T) {
	s := newServer(t, hermesTemplate, keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	for _, body := range []string{`{"input":"hi"}`, `{"input":"hi","instructions":"be brief",` +
		`"reasoning":{"effort":"low"},"text":{"format":{"type":"json_object"}}}`,
		`{"input":[{"role":"user","content":"x"}],"tools":[{"type":"function","name":"f"}],` +
			`"parallel_tool_calls":false,"tool_choice":"auto"}`} {
		got := s.ok(t, responses.InputTokensPath, body)
		s.ok(t, responses.ResponsesPath, body)
		same(t, got, fmt.Sprintf(`{"object":"response.input_tokens","input_tokens":%d}`,
			len(s.engine.last(t).Prompt)))
	}
	n := len(s.engine.requests)
	refused(t, s, responses.InputTokensPath, `{}`, 400, "input", "required")
	refused(t, s, responses.InputTokensPath, `{"input":"hi","model":"other"}`, 404, "model", "other")
	if len(s.engine.requests) != n {
		t.Error("a count reached the engine")
	}
	// What is too long for the model is counted all the same.
	long := `"input":"` + strings.Repeat("word ", 300) + `"`
	if got := s.ok(t, responses.InputTokensPath, `{`+long+`}`); got["input_tokens"].(float64) < 257 {
		t.Errorf("a long input has %v", got)
	}
	for method, want := range map[string]int{"POST": 404, "GET": 404, "DELETE": 404} {
		rec := s.do(method, responses.CompactPath, "")
		if rec.Code != want || at(t, object(t, rec.Body.Bytes()), "error", "code") != 404.0 {
			t.Errorf("%s %s: %d %s", method, responses.CompactPath, rec.Code, rec.Body)
		}
	}
}

// TestTruncationAuto: a conversation that is too long loses its beginning if the request allows
// that, by whole turns, without the instructions, and never an output whose call is gone.
func TestTruncationAuto(t *testing.T) {
	s := newServer(t, withTemplate(t, shown), keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	turn := func(i int) string {
		return fmt.Sprintf(`{"role":"user","content":"q%d %s"},{"role":"assistant","content":"a%d"}`,
			i, strings.Repeat("word ", 20), i)
	}
	var turns []string
	for i := range 12 {
		turns = append(turns, turn(i))
	}
	input := `"input":[{"role":"developer","content":"stay"},` + strings.Join(turns, ",") +
		`,{"role":"user","content":"last"}],"instructions":"be brief"`
	e := at(t, object(t, s.post(responses.ResponsesPath, `{`+input+`}`).Body.Bytes()), "error")
	if e.(map[string]any)["code"] != "context_length_exceeded" {
		t.Errorf("too long a conversation: %v", e)
	}
	answer := s.ok(t, responses.ResponsesPath, `{`+input+`,"truncation":"auto"}`)
	text, read := rendered(t, s), len(s.engine.last(t).Prompt)
	var first int
	if _, err := fmt.Sscanf(text, "system:be brief;system:stay;user:q%d ", &first); err != nil ||
		first < 1 || !strings.HasSuffix(text, "assistant:a11;user:last;") || read > 255 ||
		answer["truncation"] != "auto" {
		t.Errorf("%d tokens of %q, %v", read, text, err)
	}
	counted := s.ok(t, responses.InputTokensPath, `{`+input+`,"truncation":"auto"}`)
	if counted["input_tokens"] != float64(read) {
		t.Errorf("%v are counted, %d read", counted, read)
	}
	// One turn more does not fit: no more is dropped than must be.
	more := `"input":[{"role":"developer","content":"stay"},` +
		strings.Join(turns[first-1:], ",") + `,{"role":"user","content":"last"}],` +
		`"instructions":"be brief"`
	if rec := s.post(responses.ResponsesPath, `{`+more+`}`); rec.Code != 400 {
		t.Errorf("one turn more: %d", rec.Code)
	}
	// Room for the answer that is asked for.
	s.ok(t, responses.ResponsesPath, `{`+input+`,"truncation":"auto","max_output_tokens":150}`)
	if n := len(s.engine.last(t).Prompt); n > 256-150 || n > read {
		t.Errorf("%d tokens beside 150", n)
	}
	// The conversation before counts as well.
	id, _ := s.talk(t, `{"items":[`+strings.Join(turns, ",")+`]}`)
	s.ok(t, responses.ResponsesPath,
		`{"input":"last","truncation":"auto","conversation":"`+id+`"}`)
	if text := rendered(t, s); !strings.HasPrefix(text, "user:q") ||
		strings.Contains(text, "q0 ") || !strings.HasSuffix(text, "user:last;") {
		t.Errorf("in a conversation: %q", text)
	}
	// One turn of many calls: its first ones go, each with its output.
	var calls []string
	for i := range 40 {
		calls = append(calls, fmt.Sprintf(`{"type":"function_call","call_id":"c%d","name":"f",`+
			`"arguments":"{}"},{"type":"function_call_output","call_id":"c%d","output":"o%d %s"}`,
			i, i, i, strings.Repeat("word ", 5)))
	}
	for room := 10; room < 100; room += 5 { // so that cuts fall on calls and on outputs
		s.ok(t, responses.ResponsesPath, fmt.Sprintf(`{"input":[{"role":"user","content":"go"},`+
			`%s],"truncation":"auto","max_output_tokens":%d}`, strings.Join(calls, ","), room))
		if text := rendered(t, s); !strings.HasPrefix(text, "assistant:;tool:o") ||
			!strings.Contains(text, "o39 ") {
			t.Errorf("of many calls: %q", text)
		}
	}
	// A template that refuses what does not begin with the user: turns are enough.
	strict := newServer(t, withTemplate(t, "{% if messages[0].role != 'user' %}"+
		"{{ raise_exception('the user begins') }}{% endif %}"+shown))
	steps := strings.Repeat(`,{"role":"assistant","content":"a"}`, 20)
	strict.ok(t, responses.ResponsesPath, `{"input":[`+strings.Join(turns[:8], ",")+
		`,{"role":"user","content":"last"}`+steps+`],"truncation":"auto"}`)
	if text := rendered(t, strict); !strings.HasPrefix(text, "user:q") {
		t.Errorf("by turns: %q", text)
	}
	refused(t, s, responses.ResponsesPath, `{"input":"`+strings.Repeat("word ", 300)+
		`","truncation":"auto"}`, 400, "input", "maximum context length")
}
