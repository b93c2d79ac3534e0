package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestSettings are the flags that must be equal on all nodes: what ranks compute with, and not what
// only node 0 has a use for or says which node this is.
func TestSettings(t *testing.T) {
	settings := func(args string) []config.Setting {
		c, err := parse(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		return c.Settings()
	}
	const both = "-tp 2 --nnodes 2 --master-addr a --cluster-token-file t"
	zero := settings(both + " --served-model-name a b --port 80 --max-logprobs 3 " +
		"--queue-port-range 1-2 --disable-custom-all-reduce --max-restarts 1")
	one := settings(both + " --node-rank 1 --headless --distributed-timeout-seconds 5")
	if len(zero) < 15 || !slices.Equal(zero, one) {
		t.Errorf("%v\nand %v", zero, one)
	}
	for args, want := range map[string]config.Setting{
		"-tp 4":                      {Name: "--tensor-parallel-size", Value: "4"},
		"--nnodes 1":                 {Name: "--nnodes", Value: "1"},
		"--dtype float32":            {Name: "--dtype", Value: "float32"},
		"--max-model-len 1k":         {Name: "--max-model-len", Value: "1000"},
		"--max-model-len auto":       {Name: "--max-model-len"},
		"--block-size 32":            {Name: "--block-size", Value: "32"},
		"--no-enable-prefix-caching": {Name: "--enable-prefix-caching", Value: "false"},
		"--seed 7":                   {Name: "--seed", Value: "7"},
		"--revision main":            {Name: "--revision", Value: "main"},
		"--cpu-isa avx2":             {Name: "--cpu-isa", Value: "avx2"},
	} {
		if got := settings(args); !slices.Contains(got, want) {
			t.Errorf("%s: %v is not in %v", args, want, got)
		}
	}
	var none config.Config
	if s := none.Settings(); s != nil {
		t.Errorf("without flags: %v", s)
	}
}

// TestOwnToNode names flags that are there.
func TestOwnToNode(t *testing.T) {
	_, f := flags()
	for _, name := range config.OwnToNode {
		if f.Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
}
