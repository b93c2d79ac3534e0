package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// remote is a server that speaks OpenAI's API.
type remote struct {
	// url is its address without /v1, as the flag has it until connect.
	url, key string
	// model is the name that requests carry.
	model  string
	client *http.Client
	// timed says that the server is one of this program, which tells the times of answers.
	timed bool
	// stats shows the figures of each answer.
	stats bool
}

// bind defines the flags that name a server, as vLLM's chat and complete do.
func (r *remote) bind(f *pflag.FlagSet, address string) {
	f.StringVar(&r.url, "url", address,
		"server to ask, such as localhost:8000 or http://host:8000/v1")
	f.StringVar(&r.key, "api-key", "", "key of that server (or OPENAI_API_KEY)")
	config.Alias(f, "api-key", "OPENAI_API_KEY")
	f.StringVar(&r.model, "model-name", "",
		"name of the model at that server (default: the first it lists)")
	f.BoolVar(&r.stats, "stats", false, "show tokens and times after each answer")
}

// address is a server's address as requests need it: a scheme in front, no /v1 behind.
func address(given string) (string, error) {
	full := given
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", cli.UsageError("--url %q is not an address such as localhost:8000 or "+
			"http://host:8000/v1", given)
	}
	path := strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	return u.Scheme + "://" + u.Host + path, nil
}

// helloTimeout is how long a server may take to list its models.
const helloTimeout = 5 * time.Second

// connect finds the server and its model.
func (r *remote) connect(ctx context.Context) (err error) {
	if r.url, err = address(r.url); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	resp, err := r.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID      string
			OwnedBy string `json:"owned_by"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil {
		return fmt.Errorf("%s does not speak OpenAI's API: /v1/models: %w", r.url, err)
	}
	if len(list.Data) > 0 {
		r.model = cmp.Or(r.model, list.Data[0].ID)
		r.timed = list.Data[0].OwnedBy == "eagleray"
	}
	return nil
}

// do sends a request. An answer that is no success is an error in the server's words.
func (r *remote) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, bytes.NewReader(raw))
	if err != nil {
		return nil, cli.UsageError("--url: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		if long := (*url.Error)(nil); errors.As(err, &long) {
			err = long.Err
		}
		return nil, fmt.Errorf("no server answers at %s: %w", r.url, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	hint := ""
	if resp.StatusCode == http.StatusUnauthorized {
		hint = " (--api-key)"
	}
	return nil, fmt.Errorf("%s answers %s: %s%s", r.url, resp.Status, errorText(raw), hint)
}

// errorText is the message of an error body, or the body.
func errorText(raw []byte) string {
	var body struct{ Error struct{ Message string } }
	if json.Unmarshal(raw, &body) == nil && body.Error.Message != "" {
		return body.Error.Message
	}
	return strings.TrimSpace(string(raw))
}

// reply is an answer and its figures.
type reply struct {
	text string
	// prompt, cached and tokens are the server's counts, 0 where it does not say them.
	prompt, cached, tokens int
	// first is when the first text came, took when the last did, since the request.
	first, took time.Duration
	// metrics are the server's times, nil where it does not say them.
	metrics *wire.Metrics
}

// String is the figures. Tokens a second are those after the first one, as the server says, or as
// they came.
func (a *reply) String() string {
	if a.tokens == 0 {
		return fmt.Sprintf("first text after %.2f s, the last after %.2f s; the server does not "+
			"count tokens", a.first.Seconds(), a.took.Seconds())
	}
	cached := ""
	if a.cached > 0 {
		cached = fmt.Sprintf(" (%d of them cached)", a.cached)
	}
	m := cmp.Or(a.metrics, &wire.Metrics{})
	if v := m.PrefillTokensPerSecond; v != nil {
		cached += fmt.Sprintf(" at %.1f tokens/s", *v)
	}
	s := fmt.Sprintf("%d tokens of prompt%s, first text after %.2f s; %d tokens in %.2f s",
		a.prompt, cached, a.first.Seconds(), a.tokens, a.took.Seconds())
	if v := m.DecodeTokensPerSecond; v != nil {
		s += fmt.Sprintf(", %.1f tokens/s", *v)
	} else if took := (a.took - a.first).Seconds(); took > 0 && a.tokens > 1 {
		s += fmt.Sprintf(", %.1f tokens/s", float64(a.tokens-1)/took)
	}
	return s
}

// stream posts a request and calls piece with each part of the first choice's text. The text so
// far is returned also when the answer breaks off.
func (r *remote) stream(ctx context.Context, path string, body map[string]any,
	piece func(string)) (reply, error) {
	body["stream"] = true
	body["stream_options"] = map[string]any{"include_usage": true}
	if r.model != "" {
		body["model"] = r.model
	}
	if r.timed { // others may refuse what they do not know
		body["return_metrics"] = true
	}
	started := time.Now()
	var a reply
	resp, err := r.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	var answer strings.Builder
	broken := func(err error) (reply, error) {
		a.text = answer.String()
		return a, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:") // some servers leave no space
		if data = strings.TrimSpace(data); !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
			Usage *struct {
				PromptTokens        int `json:"prompt_tokens"`
				CompletionTokens    int `json:"completion_tokens"`
				PromptTokensDetails struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
			Metrics *wire.Metrics
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return broken(fmt.Errorf("server sent %q: %w", data, err))
		}
		if chunk.Error != nil {
			return broken(errors.New(chunk.Error.Message))
		}
		if u := chunk.Usage; u != nil {
			a.prompt, a.tokens = u.PromptTokens, u.CompletionTokens
			a.cached = u.PromptTokensDetails.CachedTokens
		}
		if m := chunk.Metrics; m != nil {
			a.metrics, a.cached = m, m.CachedTokens
		}
		for _, c := range chunk.Choices {
			if text := c.Text + c.Delta.Content; text != "" {
				answer.WriteString(text)
				a.took = time.Since(started)
				if a.first == 0 {
					a.first = a.took
				}
				piece(text)
			}
		}
	}
	return broken(lines.Err())
}
