package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestRepetition: an output that repeats itself ends and says why, in both APIs and in their
// streams.
func TestRepetition(t *testing.T) {
	url := serve(t, nil).URL
	const loop = `"max_tokens":40,"temperature":0,"logit_bias":{"7":100},"ignore_eos":true,"return_token_ids":true,` +
		`"repetition_detection":{"max_pattern_size":3,"min_pattern_size":2,"min_count":3}`
	for path, prompt := range map[string]string{
		"/v1/completions":      `"prompt":"once"`,
		"/v1/chat/completions": `"messages":[{"role":"user","content":"once"}]`,
	} {
		body := ask(t, url+path, "{"+prompt+","+loop+"}")
		var got struct {
			Choices []struct {
				FinishReason string  `json:"finish_reason"`
				StopReason   any     `json:"stop_reason"`
				TokenIDs     []int32 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Choices) != 1 {
			t.Fatalf("%s: %v: %s", path, err, body)
		}
		if c := got.Choices[0]; c.FinishReason != "repetition" ||
			c.StopReason != "repetition_detected" || len(c.TokenIDs) != 6 {
			t.Errorf("%s: %+v", path, c)
		}
		events := ask(t, url+path, "{"+prompt+","+loop+`,"stream":true}`)
		if strings.Count(events,
			`"finish_reason":"repetition","stop_reason":"repetition_detected"`) != 1 {
			t.Errorf("%s: %s", path, events)
		}
	}
}

// ask posts a request and returns the body of the answer, which is not an error.
func ask(t *testing.T, url, body string) string {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", r.StatusCode, err, b)
	}
	return string(b)
}
