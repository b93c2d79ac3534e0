// Package apitest has requests that every surface of the program can make, and answers them over
// HTTP, for tests that compare another surface with it.
package apitest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// Prompt and Seed are those of every case.
const (
	Prompt = "Package strings implements"
	Seed   = 11
)

// Case is a request to a model with a generation config.
type Case struct {
	Name string
	// Generation is the model's generation_config.json.
	Generation string
	// Set is what the request sets: no min_p and repetition_penalty, which not every surface has.
	Set       sample.Settings
	IgnoreEOS bool
}

// Cases returns cases in which a surface that resolved parameters in its own way would differ.
func Cases() []Case {
	const suggested = `{"temperature":0.7,"top_p":0.8,"top_k":20,"min_p":0.05,"repetition_penalty":1.1,
		"max_new_tokens":24,"eos_token_id":[2045,9,5]}`
	return []Case{
		{Name: "generation config", Generation: suggested},
		{Name: "request over generation config", Generation: suggested,
			Set: sample.Settings{Temperature: new(1.0), TopP: new(1.0), TopK: new(0),
				MaxTokens: new(12)}},
		{Name: "request beyond the bound of all", Generation: suggested,
			Set: sample.Settings{MaxTokens: new(100)}},
		{Name: "request alone", Generation: `{}`,
			Set: sample.Settings{Temperature: new(0.9), TopP: new(0.5), TopK: new(7),
				MaxTokens: new(12)}},
		{Name: "greedy", Generation: suggested, Set: sample.Settings{Temperature: new(0.0)}},
		{Name: "greedy with filters", Generation: suggested,
			Set: sample.Settings{Temperature: new(0.0), TopP: new(0.3), TopK: new(3)}},
		{Name: "tiny temperature", Generation: `{"temperature":0.0001,"max_new_tokens":12}`},
		{Name: "tiny temperature of the request", Generation: suggested,
			Set: sample.Settings{Temperature: new(0.002)}},
		{Name: "top_k beyond the vocabulary", Generation: `{"top_k":100000,"max_new_tokens":12}`},
		{Name: "ignore_eos", Generation: suggested, IgnoreEOS: true},
		{Name: "more than the context holds",
			Generation: `{"max_new_tokens":1000000,"temperature":0}`},
	}
}

// Folder returns a new folder with the case's generation_config.json.
func (c Case) Folder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "generation_config.json"), []byte(c.Generation),
		0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Open opens the built-in model with the generation config of folder. The test's end closes it.
func Open(t *testing.T, folder string) *engine.Engine {
	t.Helper()
	cfg := config.Default()
	cfg.Cache.MemoryBytes = 64 << 20
	cfg.Model.GenerationConfig = folder
	e, _, err := engine.Open(t.Context(), engine.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// observer is an engine that keeps the newest request.
type observer struct {
	*engine.Engine
	last *engine.Request
}

func (o *observer) Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error) {
	last := list[0].Output(0)
	o.last = &last
	return o.Engine.Submit(ctx, list...)
}

// Complete answers the case over HTTP. It returns the parameters that reached the engine, and the
// output.
func (c Case) Complete(t *testing.T, e *engine.Engine) (sample.Params, []int32) {
	t.Helper()
	o := &observer{Engine: e}
	s, err := api.New(api.Options{Info: e.Info(), Engine: o, Config: config.Default()})
	if err != nil {
		t.Fatal(err)
	}
	most := c.Set.MaxTokens
	if most == nil { // what other surfaces take of the generation config, within the room
		most = e.Info().Generation.MaxTokens
	}
	body := map[string]any{
		"prompt": Prompt, "seed": Seed, "ignore_eos": c.IgnoreEOS, "return_token_ids": true,
		"temperature": c.Set.Temperature, "top_p": c.Set.TopP, "top_k": c.Set.TopK,
		"max_tokens": most, "cap_max_tokens": true,
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "http://localhost/v1/completions",
		strings.NewReader(string(raw)))
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		t.Fatalf("%s: %s answered %d: %s", c.Name, raw, rec.Code, rec.Body)
	}
	var answer struct {
		Choices []struct {
			Tokens []int32 `json:"token_ids"`
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return o.last.Params, answer.Choices[0].Tokens
}
