package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openai "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/eagleray/eagleray/internal/api/conform"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// newClient is OpenAI's own client against the server.
func newClient(t *testing.T, s *testServer) openai.Client {
	t.Helper()
	ts := httptest.NewServer(conform.Handler(t, s.Handler()))
	t.Cleanup(ts.Close)
	return openai.NewClient(option.WithBaseURL(ts.URL+"/v1/"), option.WithAPIKey("sk-test"),
		option.WithMaxRetries(0))
}

func hiParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "tiny",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("be brief"), openai.UserMessage("hi")}}
}

func TestClientChat(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.APIKeys = []string{"sk-test"} })
	c := newClient(t, s)
	p := hiParams()
	p.N, p.Logprobs, p.TopLogprobs = openai.Int(2), openai.Bool(true), openai.Int(2)
	p.Temperature, p.Seed, p.MaxCompletionTokens = openai.Float(0.5), openai.Int(7), openai.Int(10)
	p.Stop = openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{"END"}}
	got, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 2 || got.Choices[1].Message.Content != " hello world" ||
		got.Choices[1].Index != 1 || got.Choices[0].FinishReason != "stop" ||
		got.Choices[0].Message.Role != "assistant" || got.Model != "tiny" ||
		got.Usage.CompletionTokens != 4 || !strings.HasPrefix(got.ID, "chatcmpl-") {
		t.Errorf("got %+v", got)
	}
	lp := got.Choices[0].Logprobs.Content
	if len(lp) != 2 || len(lp[0].TopLogprobs) != 2 || lp[0].Logprob != -1.5 ||
		len(lp[0].Bytes) == 0 {
		t.Errorf("logprobs %+v", lp)
	}
	if r := s.engine.last(t); r.Params.Temperature != 0.5 || r.Params.MaxTokens != 10 ||
		r.Stop[0] != "END" || r.Params.Seed != 8 {
		t.Errorf("request %+v", r)
	}
}

func TestClientChatStream(t *testing.T) {
	s := newServer(t)
	c := newClient(t, s)
	p := hiParams()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := c.Chat.Completions.NewStreaming(t.Context(), p)
	acc := openai.ChatCompletionAccumulator{}
	roles := 0
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			t.Errorf("the client does not accept %s", chunk.RawJSON())
		}
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Role == "assistant" {
			roles++
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if roles != 1 || len(acc.Choices) != 1 || acc.Choices[0].Message.Content != " hello world" ||
		acc.Choices[0].FinishReason != "stop" || acc.Usage.CompletionTokens != 2 {
		t.Errorf("accumulated %+v", acc.ChatCompletion)
	}
}

func TestClientCompletions(t *testing.T) {
	s := newServer(t)
	c := newClient(t, s)
	p := openai.CompletionNewParams{Model: "tiny",
		Prompt:   openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b"}},
		Logprobs: openai.Int(2), Echo: openai.Bool(true)}
	got, err := c.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 2 || got.Choices[1].Text != "b hello world" ||
		got.Choices[1].Index != 1 || got.Choices[0].FinishReason != "stop" ||
		len(got.Choices[0].Logprobs.Tokens) != 3 ||
		got.Choices[0].Logprobs.TokenLogprobs[2] != -1.5 {
		t.Errorf("got %s", got.RawJSON())
	}
	stream := c.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{Model: "tiny",
		Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2}}})
	text, finish := "", ""
	for stream.Next() {
		choice := stream.Current().Choices[0]
		text += choice.Text
		finish = string(choice.FinishReason)
	}
	if stream.Err() != nil || text != " hello world" || finish != "stop" {
		t.Errorf("streamed %q %q %v", text, finish, stream.Err())
	}
}

func TestClientModels(t *testing.T) {
	c := newClient(t, newServer(t))
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 2 || page.Data[0].ID != "tiny" ||
		page.Data[0].OwnedBy != "eagleray" {
		t.Errorf("%v %+v", err, page)
	}
	one, err := c.Models.Get(t.Context(), "alias/tiny")
	if err != nil || one.ID != "alias/tiny" {
		t.Errorf("%v %+v", err, one)
	}
}

// TestClientErrors: the client finds status, message, type and parameter where it looks for them.
func TestClientErrors(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.APIKeys = []string{"sk-test"} })
	c := newClient(t, s)
	wrong := openai.NewClient(option.WithBaseURL(listen(t, s).URL+"/v1/"),
		option.WithAPIKey("sk-wrong"), option.WithMaxRetries(0))
	for name, f := range map[string]struct {
		Call                 func() error
		status               int
		Kind, param, message string
	}{
		"bad request": {func() error {
			p := hiParams()
			p.TopP = openai.Float(3)
			_, err := c.Chat.Completions.New(t.Context(), p)
			return err
		}, 400, "BadRequestError", "top_p", "(0, 1]"},
		"unknown model": {func() error {
			p := hiParams()
			p.Model = "gpt-4"
			_, err := c.Chat.Completions.New(t.Context(), p)
			return err
		}, 404, "NotFoundError", "model", "does not exist"},
		"wrong key": {func() error {
			_, err := wrong.Chat.Completions.New(t.Context(), hiParams())
			return err
		}, 401, "AuthenticationError", "", "Unauthorized"},
		"overloaded": {func() error {
			s.engine.submit = func(int) error { return engine.ErrOverloaded }
			defer func() { s.engine.submit = nil }()
			_, err := c.Chat.Completions.New(t.Context(), hiParams())
			return err
		}, 503, "ServiceUnavailableError", "", "overloaded"},
		"failed": {func() error {
			s.engine.submit = func(int) error {
				return fmt.Errorf("%w: rank 0 died",
					engine.ErrFailed)
			}
			defer func() { s.engine.submit = nil }()
			_, err := c.Chat.Completions.New(t.Context(), hiParams())
			return err
		}, 500, "InternalServerError", "", "rank 0 died"},
	} {
		err := f.Call()
		var e *openai.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e.StatusCode != f.status || e.Type != f.Kind || e.Param != f.param ||
			!strings.Contains(e.Message, f.message) {
			t.Errorf("%s: %d %q %q %q", name, e.StatusCode, e.Type, e.Param, e.Message)
		}
	}
}

// TestClientStreamError: an error after the stream began reaches the client as an error, not as an
// end.
func TestClientStreamError(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(i int, r *engine.Request) script {
		return script{deltas: sayHello(i, r).deltas[:1], err: fmt.Errorf("%w: rank 0 died",
			engine.ErrFailed)}
	}
	c := newClient(t, s)
	stream := c.Chat.Completions.NewStreaming(t.Context(), hiParams())
	text := ""
	for stream.Next() {
		if choices := stream.Current().Choices; len(choices) > 0 {
			text += choices[0].Delta.Content
		}
	}
	if text != " hello" || stream.Err() == nil || !strings.Contains(stream.Err().Error(),
		"rank 0 died") {
		t.Errorf("text %q, error %v", text, stream.Err())
	}
}

// TestStreamErrorIsNamed: the log says of which request an error within a stream is.
func TestStreamErrorIsNamed(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/completions":      `{` + hi + `,"stream":true}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"hi"}],"stream":true}`,
		"/v1/responses":        `{"input":"hi","stream":true,"store":false}`,
		"/v1/messages": `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],` +
			`"stream":true}`,
	} {
		s := newServer(t)
		s.engine.play = func(i int, r *engine.Request) script {
			return script{deltas: sayHello(i, r).deltas[:1], err: fmt.Errorf("%w: rank 0 died",
				engine.ErrFailed)}
		}
		s.do("POST", path, body, "X-Request-Id", "mine")
		line := ""
		for l := range strings.Lines(s.log.String()) {
			if strings.Contains(l, "request failed") {
				line = l
			}
		}
		if !strings.Contains(line, "mine") || !strings.Contains(line, "rank 0 died") {
			t.Errorf("%s: %q", path, line)
		}
	}
}

// TestClientRetriesOverload: the client's own retry sees Retry-After and succeeds.
func TestClientRetriesOverload(t *testing.T) {
	s := newServer(t)
	tries := 0
	s.engine.submit = func(int) error {
		if tries++; tries == 1 {
			return engine.ErrOverloaded
		}
		return nil
	}
	c := openai.NewClient(option.WithBaseURL(listen(t, s).URL+"/v1/"), option.WithAPIKey("x"),
		option.WithMaxRetries(2), option.WithHTTPClient(&http.Client{}))
	if _, err := c.Chat.Completions.New(t.Context(), hiParams()); err != nil || tries != 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// TestClientResponses: OpenAI's own client creates, streams, retrieves, and goes on.
func TestClientResponses(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	c := newClient(t, s)
	p := responses.ResponseNewParams{Model: "tiny",
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")}}
	first, err := c.Responses.New(t.Context(), p)
	if err != nil || first.OutputText() != " hello world" || first.Status != "completed" ||
		first.Usage.OutputTokens != 2 {
		t.Fatalf("%v, %+v", err, first)
	}
	stream := c.Responses.NewStreaming(t.Context(), p)
	text, last := "", ""
	for stream.Next() {
		switch e := stream.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			text += e.Delta
		case responses.ResponseCompletedEvent:
			last = e.Response.OutputText()
		}
	}
	if stream.Err() != nil || text != " hello world" || last != text {
		t.Errorf("streamed %q, %q, %v", text, last, stream.Err())
	}
	p.PreviousResponseID = openai.String(first.ID)
	second, err := c.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Responses.Get(t.Context(), second.ID, responses.ResponseGetParams{})
	if err != nil || got.PreviousResponseID != first.ID {
		t.Errorf("%v, %+v", err, got)
	}
	if err := c.Responses.Delete(t.Context(), first.ID); err != nil {
		t.Error(err)
	}
	var wrong *openai.Error
	if _, err := c.Responses.New(t.Context(), p); !errors.As(err, &wrong) ||
		wrong.StatusCode != 404 || wrong.Param != "previous_response_id" {
		t.Errorf("%v", err)
	}
}

// TestClientObjectAndTool asks for an object by a schema and for a call of a tool with OpenAI's own
// client, which takes both from the answer.
func TestClientObjectAndTool(t *testing.T) {
	const object, call = `{"ok":true}`, `<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>`
	s := newServer(t, hermesTemplate, func(o *Options) {
		o.Config.Model.ToolCallParser = "hermes"
		o.Engine = &fakeEngine{play: func(n int, r *engine.Request) script {
			return script{deltas: say(r, []int32{300}, []string{[]string{object, call}[n%2]},
				sample.FinishStop)}
		}}
	})
	c := newClient(t, s)
	schema := map[string]any{"type": "object",
		"properties": map[string]any{"ok": map[string]any{"type": "boolean"}}}
	p := hiParams()
	p.ResponseFormat.OfJSONSchema = &openai.ResponseFormatJSONSchemaParam{
		JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "n", Schema: schema,
			Strict: openai.Bool(true)}}
	got, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil || got.Choices[0].Message.Content != object {
		t.Errorf("%+v, %v", got, err)
	}
	p = hiParams()
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(
		openai.FunctionDefinitionParam{Name: "f", Parameters: map[string]any{"type": "object"}})}
	p.ToolChoice.OfAuto = openai.String("required")
	got, err = c.Chat.Completions.New(t.Context(), p)
	if err != nil || len(got.Choices[0].Message.ToolCalls) != 1 ||
		got.Choices[0].Message.ToolCalls[0].Function.Arguments != `{"x": 1}` ||
		got.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("%+v, %v", got, err)
	}
}
