package api

import (
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// timed answers with four tokens, whose last delta has times.
func timed(_ int, r *engine.Request) script {
	list := say(r, []int32{300, 301, 302, 303}, []string{" a", " b", " c", " d"},
		sample.FinishStop)
	list[3].Times = engine.Times{Queue: 12300 * time.Microsecond, Prefill: 250 * time.Millisecond,
		Decode: 750 * time.Millisecond}
	return script{deltas: list}
}

// metricsOf are the metrics of an answer, or of the only event of a stream that has some, nil for
// none.
func metricsOf(t *testing.T, body string) map[string]any {
	t.Helper()
	var found map[string]any
	for line := range strings.Lines(body) {
		line = strings.TrimPrefix(line, "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		v := object(t, []byte(line))
		if r, ok := v["response"].(map[string]any); ok {
			v = r
		}
		m, ok := v["metrics"].(map[string]any)
		if !ok {
			continue
		}
		if found != nil || v["usage"] == nil && v["request_id"] == nil {
			t.Errorf("metrics twice, or without usage: %s", body)
		}
		found = m
	}
	return found
}

// TestMetrics: every dialect tells how long an answer took where the request or the flag asks for
// that, plain and streamed.
func TestMetrics(t *testing.T) {
	play := func(o *Options) { o.Engine = &fakeEngine{play: timed} }
	plain := newServer(t, play)
	flagged := newServer(t, play, func(o *Options) {
		o.Config.Server.Answers.PerRequestMetrics = true
	})
	want := `{"time_to_first_token_ms":250,"generation_time_ms":750,"queue_time_ms":12.3,
		"mean_itl_ms":250,"tokens_per_second":4,"decode_tokens_per_second":4,"cached_tokens":2}`
	usage := `,"stream_options":{"include_usage":true}`
	for path, body := range map[string]string{
		completionsPath:         `"prompt":[1,2,3,4,5,6,7]`,
		openai.TokensPath:       `"token_ids":[1,2,3,4,5,6,7]`,
		openai.ChatPath:         hiChat,
		responses.ResponsesPath: `"input":"hi"`,
		anthropic.MessagesPath:  hiMessage,
	} {
		openAI := path != responses.ResponsesPath && path != anthropic.MessagesPath
		ask := func(s *testServer, more string) map[string]any {
			t.Helper()
			rec := s.post(path, "{"+body+more+"}")
			if rec.Code != 200 {
				t.Fatalf("%s %s: %d %s", path, more, rec.Code, rec.Body)
			}
			return metricsOf(t, rec.Body.String())
		}
		for name, m := range map[string]map[string]any{
			"asked":           ask(plain, `,"return_metrics":true`),
			"asked, streamed": ask(plain, `,"return_metrics":true,"stream":true`),
			"flag":            ask(flagged, ``),
			"flag, streamed":  ask(flagged, `,"stream":true`+when(openAI, usage)),
			"flag, null":      ask(flagged, `,"return_metrics":null`),
		} {
			if m == nil {
				t.Errorf("%s, %s: no metrics", path, name)
				continue
			}
			rate, ok := m["prefill_tokens_per_second"].(float64)
			if prompt := float64(len(plain.engine.requests[0].Prompt)); !ok || rate <= 0 ||
				openAI && path != openai.ChatPath && rate != 20 || prompt < 3 {
				t.Errorf("%s, %s: prefill %v", path, name, m)
			}
			same(t, m, want, "prefill_tokens_per_second")
		}
		for name, m := range map[string]map[string]any{
			"not asked":           ask(plain, ``),
			"not asked, streamed": ask(plain, `,"stream":true`+when(openAI, usage)),
			"flag, not this":      ask(flagged, `,"return_metrics":false`),
		} {
			if m != nil {
				t.Errorf("%s, %s: %v", path, name, m)
			}
		}
		if openAI { // as in vLLM, the flag alone adds no chunk
			if m := ask(flagged, `,"stream":true`); m != nil {
				t.Errorf("%s streamed without usage: %v", path, m)
			}
		}
	}
	// Times of several outputs are not those of the request.
	for _, body := range []string{`"prompt":"a","n":2`, `"prompt":["a","b"]`} {
		rec := flagged.post(completionsPath, "{"+body+"}")
		if m := metricsOf(t, rec.Body.String()); rec.Code != 200 || m != nil {
			t.Errorf("%s: %d %v", body, rec.Code, m)
		}
	}
	if rec := plain.post(completionsPath, `{`+hi+`,"return_metrics":"x"}`); rec.Code != 400 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	// One token has no time between tokens.
	plain.engine.play = func(n int, r *engine.Request) script {
		list := timed(n, r).deltas[3:]
		list[0].OutputTokens, list[0].Times.Decode = 1, 0
		return script{deltas: list}
	}
	got := metricsOf(t, plain.post(completionsPath, `{`+hi+`,"return_metrics":true}`).Body.String())
	if got["mean_itl_ms"] != nil || got["decode_tokens_per_second"] != nil ||
		got["tokens_per_second"] != 4.0 {
		t.Errorf("one token: %v", got)
	}
}

func when(is bool, text string) string {
	if is {
		return text
	}
	return ""
}
