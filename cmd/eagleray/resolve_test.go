package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/api/apitest"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestGenerateSameParametersAsHTTP holds that generate and the HTTP API make the same of one
// generation config and one request.
func TestGenerateSameParametersAsHTTP(t *testing.T) {
	for _, c := range apitest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			folder := c.Folder(t)
			e := apitest.Open(t, folder)
			want, wantTokens := c.Complete(t, e)

			args := []string{"--seed", fmt.Sprint(apitest.Seed), "--generation-config", folder,
				"--kv-cache-memory-bytes", "64M"}
			if v := c.Set.Temperature; v != nil {
				args = append(args, "--temperature", fmt.Sprint(*v))
			}
			if v := c.Set.TopP; v != nil {
				args = append(args, "--top-p", fmt.Sprint(*v))
			}
			if v := c.Set.TopK; v != nil {
				args = append(args, "--top-k", fmt.Sprint(*v))
			}
			if v := c.Set.MaxTokens; v != nil {
				args = append(args, "--max-tokens", fmt.Sprint(*v))
			}
			if c.IgnoreEOS {
				args = append(args, "--ignore-eos")
			}
			cfg, flags := config.Default(), pflag.NewFlagSet("generate", pflag.ContinueOnError)
			var s sampling
			cfg.EngineFlags(flags)
			s.flags(flags, 128)
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			r, err := s.request(e.Info(), flags, e.Info().Tokenizer.Encode(apitest.Prompt, true))
			if err != nil {
				t.Fatal(err)
			}
			e.Info().Fit(&r.Params, len(r.Prompt)) // as Submit does
			if !reflect.DeepEqual(r.Params, want) {
				t.Errorf("generate %+v\nHTTP     %+v", r.Params, want)
			}

			code, stdout, stderr := execute(t, "", append(append([]string{"generate", "--raw",
				"--json"}, args...), apitest.Prompt)...)
			var o output
			if err := json.Unmarshal([]byte(stdout), &o); code != 0 || err != nil {
				t.Fatalf("exit code %d, %v, printed %q, errors %q", code, err, stdout, stderr)
			}
			if !slices.Equal(o.Tokens, wantTokens) {
				t.Errorf("generate gives %v, HTTP %v", o.Tokens, wantTokens)
			}
		})
	}
}
