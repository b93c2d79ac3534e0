package api

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// keeping gives a server a store for responses.
func keeping(t testing.TB, o store.Options) func(*Options) {
	kept := store.New("", o)
	t.Cleanup(func() { kept.Close() })
	return func(o *Options) { o.Responses = kept }
}

var (
	madeIDs  = regexp.MustCompile(`\b(resp_|msg_|rs_|fc_|fco_|call_|toolu_|req_)\w{24,}`)
	madeTime = regexp.MustCompile(`"(created_at|completed_at)":\d+`)
)

// steady numbers the ids in a text by their first appearance, and takes the times out.
func steady(seen map[string]string, text string) string {
	text = madeIDs.ReplaceAllStringFunc(text, func(id string) string {
		if seen[id] == "" {
			prefix := id[:strings.Index(id, "_")+1]
			n := 1
			for _, other := range seen {
				if strings.HasPrefix(other, prefix) {
					n++
				}
			}
			seen[id] = fmt.Sprintf("%s%d", prefix, n)
		}
		return seen[id]
	})
	return madeTime.ReplaceAllString(text, `"$1":0`)
}

// brief leaves of the responses within events what differs from one to the next.
func brief(t *testing.T, text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		head, whole, found := strings.Cut(line, `,"response":`)
		if !found || !strings.HasPrefix(line, "data: ") {
			continue
		}
		var rec struct {
			ID                string          `json:"id"`
			Status            string          `json:"status"`
			Error             json.RawMessage `json:"error"`
			IncompleteDetails json.RawMessage `json:"incomplete_details"`
			Output            json.RawMessage `json:"output"`
			Usage             json.RawMessage `json:"usage"`
		}
		if err := json.Unmarshal([]byte(strings.TrimSuffix(whole, "}")), &rec); err != nil {
			t.Fatal(err)
		}
		lines[i] = head + `,"response":` + marshal(t, rec) + "}"
	}
	return strings.Join(lines, "\n")
}

// TestTranscripts replays testdata/*.txt, where clients talk to a server whose model writes what
// the transcript says, by Hermes' and Qwen 3's conventions:
//
//	answer stop ["a","piece after the other"]
//	post /v1/responses {"input":"hi"}
//	get /v1/responses/resp_1
//
// A number in an id stands for the id that was made as that one of its kind.
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		seen := map[string]string{}
		finish, texts := sample.FinishStop, []string{" hello", " world"}
		s := newServer(t, withTemplate(t,
			`{# <tool_call>{"name": "f", "arguments": {}}</tool_call> </think> #}`+
				`{% if tools %}{% endif %}`+
				`{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}`), keeping(t,
			store.Options{}), func(o *Options) {
			o.Info.MaxModelLen = 2048
			o.Engine = &fakeEngine{play: func(n int, r *engine.Request) script {
				ids := make([]int32, len(texts))
				for i := range ids {
					ids[i] = int32(300 + i)
				}
				return script{deltas: say(r, ids, texts, finish)}
			}}
		})
		t.Cleanup(s.Close)
		return func(name string, args []string) string {
			rest := strings.Join(args[1:], " ")
			if name == "answer" {
				finish = map[string]sample.Finish{"stop": sample.FinishStop,
					"length": sample.FinishLength}[args[0]]
				texts = nil
				if err := json.Unmarshal([]byte(rest), &texts); err != nil {
					t.Fatal(err)
				}
				return ""
			}
			text := args[0] + " " + rest
			for made, shown := range seen {
				text = regexp.MustCompile(`\b`+shown+`\b`).ReplaceAllString(text, made)
			}
			path, body, _ := strings.Cut(text, " ")
			rec := s.do(strings.ToUpper(name), path, body)
			got := steady(seen, rec.Body.String())
			got = brief(t, strings.ReplaceAll(got, "\n\n", "\n"))
			if rec.Code != 200 {
				got = fmt.Sprintf("%d %s", rec.Code, got)
			}
			return strings.TrimSuffix(got, "\n") + "\n"
		}
	})
}
