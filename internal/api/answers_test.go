package api

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// TestAnswersByDefault: what a request does not say, the server's flags do.
func TestAnswersByDefault(t *testing.T) {
	template, err := chattemplate.Parse("{{ first }}+{{ second }}")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) {
		o.Info.Template = template
		o.Config.Server.Answers = config.Answers{ForceIncludeUsage: true, TokensAsTokenIDs: true,
			ChatTemplateKwargs: `{"first":"os","second":"io"}`}
	})
	for body, chunksOfUsage := range map[string]int{
		`{` + hi + `,"stream":true}`:                                                  1,
		`{` + hi + `,"stream":true,"stream_options":{"include_usage":false}}`:         1,
		`{` + hi + `,"stream":true,"stream_options":{"continuous_usage_stats":true}}`: 3,
	} {
		found := 0
		for _, c := range chunks(t, s.post(completionsPath, body)) {
			if c["usage"] != nil {
				found++
			}
		}
		if found != chunksOfUsage {
			t.Errorf("%s: %d chunks have usage, want %d", body, found, chunksOfUsage)
		}
	}
	shown := func(body string) any {
		return at(t, s.ok(t, completionsPath, `{`+hi+`,"logprobs":0`+body+`}`), "choices", 0,
			"logprobs", "tokens", 0)
	}
	if got := shown(``); got != "token_id:300" {
		t.Errorf("a token is shown as %v", got)
	}
	if got := shown(`,"return_tokens_as_token_ids":false`); got == "token_id:300" {
		t.Error("what a request says does not count")
	}
	for kwargs, want := range map[string]string{"": "os+io",
		`,"chat_template_kwargs":{"second":"fmt"}`: "os+fmt"} {
		got := at(t, s.ok(t, openai.ChatPath, `{`+hiChat+`,"return_prompt_text":true`+kwargs+`}`),
			"prompt_text")
		if got != want {
			t.Errorf("%q renders %v, want %s", kwargs, got, want)
		}
	}
	o := s.opt
	o.Config.Server.Answers.ChatTemplateKwargs = `{"messages":[]}`
	var mistake *config.UsageError
	if _, err := New(o); !errors.As(err, &mistake) ||
		!strings.Contains(err.Error(),
			"--default-chat-template-kwargs: `chat_template_kwargs` cannot set") {
		t.Errorf("a reserved name: %v", err)
	}
}

// TestTwoLengths: a request with Content-Length beside Transfer-Encoding is the last one of its
// connection, as one that a proxy may have cut elsewhere.
func TestTwoLengths(t *testing.T) {
	s := newServer(t)
	ts := listen(t, s)
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"+
		"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", completionsPath)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close {
		t.Fatalf("%+v, %v", resp, err)
	}
	resp.Body.Close()
	if resp, err := http.ReadResponse(in, nil); err == nil {
		t.Errorf("what followed was answered: %s", resp.Status)
	}
}
