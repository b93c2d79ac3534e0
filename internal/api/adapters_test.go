package api

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
)

// adapting is a server with adapters, over the built-in model, and the folder of two.
func adapting(t *testing.T, keys ...string) (h *httptest.Server, dir string) {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.CPUThreads = 16<<20, 1
	c.LoRA.Enable, c.Server.APIKeys = true, keys
	e, _, err := engine.Open(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	shapes, err := model.Adaptable(e.Model())
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for i, name := range []string{"sql", "go"} {
		if err := loratest.Write(filepath.Join(dir, name), shapes, loratest.Options{Rank: 4,
			Seed: uint64(i), Width: 0.2}); err != nil {
			t.Fatal(err)
		}
	}
	o := adapters.Options{Engines: func() []*engine.Engine { return []*engine.Engine{e} },
		MaxRank: 16, Allowed: []string{dir}}
	o.Resolve, o.May = adapters.InFolder(dir)
	control, err := adapters.New(o)
	if err != nil {
		t.Fatal(err)
	}
	trainer, err := rlhf.New(rlhf.Options{Engines: o.Engines}) // it can abort requests
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Info: e.Info(), Engine: e, Config: c, Adapters: control,
		Trainer: trainer})
	if err != nil {
		t.Fatal(err)
	}
	h = httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return h, dir
}

// TestAdapterRoutes holds the routes to vLLM's answers, and names to OpenAI's errors.
func TestAdapterRoutes(t *testing.T) {
	h, dir := adapting(t, "secret")
	load := func(name, path string) string {
		return fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path)
	}
	tell := func(model string) string {
		return fmt.Sprintf(`{"model":%q,"prompt":"A","max_tokens":3}`, model)
	}
	for _, step := range []struct {
		call, body string
		status     int
		want       string
	}{
		{"POST /v1/completions", tell("nope"), 404, "The model `nope` does not exist."},
		{"POST /v1/load_lora_adapter", load("a", filepath.Join(dir, "sql")), 200,
			"Success: LoRA adapter 'a' added successfully."},
		{"POST /v1/load_lora_adapter", load("a", filepath.Join(dir, "go")), 400,
			"loaded already"},
		{"POST /v1/load_lora_adapter", `{"lora_name":"a","load_inplace":true,"lora_path":"` +
			filepath.Join(dir, "go") + `"}`, 200, "added successfully"},
		{"POST /v1/load_lora_adapter", load("b", filepath.Join(dir, "none")), 404, "no folder"},
		{"POST /v1/load_lora_adapter", load("b", "/etc"), 400, "--allowed-local-weights"},
		{"POST /v1/load_lora_adapter", load("b", dir+"/../.."), 400, "--allowed-local-weights"},
		{"POST /v1/load_lora_adapter", `{"lora_name":"b"}`, 400, "`lora_path` is required"},
		{"POST /v1/load_lora_adapter", load("", filepath.Join(dir, "go")), 400, "needs a name"},
		{"GET /v1/models", "", 200, `"id":"a","object":"model"`},
		{"GET /v1/models", "", 200, `"parent":"go-std-tiny"`},
		{"GET /v1/models/a", "", 200, `"root":"` + filepath.Join(dir, "go")},
		{"POST /v1/completions", tell("a"), 200, `"model":"a"`},
		{"POST /v1/chat/completions", `{"model":"a","max_tokens":3,"messages":[{"role":"user",` +
			`"content":"A"}]}`, 200, `"model":"a"`},
		{"POST /v1/completions", `{"model":"a","prompt":"A","max_tokens":3,"use_beam_search":true,` +
			`"n":2,"temperature":0}`, 200, `"model":"a"`},
		{"POST /v1/completions", tell("sql"), 200, `"model":"sql"`}, // by the resolver
		{"POST /v1/unload_lora_adapter", `{"lora_name":"a"}`, 200,
			"Success: LoRA adapter 'a' removed successfully."},
		{"POST /v1/unload_lora_adapter", `{"lora_name":"a"}`, 404, "no such adapter"},
		{"POST /v1/unload_lora_adapter", `{}`, 400, "`lora_name` is required"},
		{"POST /v1/completions", tell("a"), 404, "The model `a` does not exist."},
		{"GET /v1/models/a", "", 404, "does not exist"},
	} {
		status, _, text := asked(t, h, step.call, step.body)
		if status != step.status || !strings.Contains(text, step.want) {
			t.Errorf("%s %s: %d %s, want %d %s", step.call, step.body, status, text, step.status,
				step.want)
		}
	}
}

// TestAdapterRoutesNeedKey: where every client could change the adapters, none does.
func TestAdapterRoutesNeedKey(t *testing.T) {
	h, dir := adapting(t)
	status, _, text := asked(t, h, "POST /v1/load_lora_adapter",
		`{"lora_name":"a","lora_path":"`+filepath.Join(dir, "go")+`"}`)
	if status != 403 || !strings.Contains(text, "--api-key") {
		t.Errorf("%d %s", status, text)
	}
}
