package main

import (
	"strings"
	"testing"
)

// TestHelpTopics explains groups, single flags and words, and what is known without an effect.
func TestHelpTopics(t *testing.T) {
	started := false
	c, _, err := rootFor(&started, nil).Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string][]string{
		"listgroup": {"Frontend", "ModelConfig", "ParallelConfig", "RayConfig",
			"SchedulerConfig"},
		"cacheconfig":    {"--block-size", "--enable-prefix-caching"},
		"max_num_seqs":   {"--max-num-seqs int", "also: EAGLERAY_MAX_NUM_SEQS"},
		"drain-timeout":  {"--shutdown-timeout int", "--drain-timeout, EAGLERAY_DRAIN_TIMEOUT"},
		"nnodes":         {"--nnodes int", "-n"},
		"restarts":       {"--max-restarts"},
		"kv-cache-dtype": {"known to vLLM: the cache has 16-bit values"},
		"all":            {"--port", "--optimization-level", "--block-size"},
	} {
		var out strings.Builder
		if err := explain(c, topic, &out); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("--help=%s has no %q:\n%s", topic, w, out.String())
			}
		}
		if topic == "cacheconfig" && strings.Contains(out.String(), "--kv-cache-dtype") {
			t.Error("a group shows a flag that does nothing")
		}
	}
	var out strings.Builder
	if err := explain(c, "max-num-sequences", &out); err == nil || !strings.Contains(err.Error(),
		"listgroup") {
		t.Errorf("a topic that there is not: %v", err)
	}
	if err := explain(c, "max-num-sqs", &out); err == nil || !strings.Contains(err.Error(),
		"did you mean --help=max-num-seqs?") {
		t.Errorf("a topic that is misspelt: %v", err)
	}
	for args, want := range map[string]string{"serve --help=Frontend": "Frontend",
		"serve --help": "", "serve --help=true": "", "serve -- --help=x": ""} {
		if topic, asked := helpTopic(strings.Fields(args)); asked != (want != "") || topic != want {
			t.Errorf("%s: %q, %v", args, topic, asked)
		}
	}
}

// TestVerbAlone has a verb that is built alone say what it says among the others.
func TestVerbAlone(t *testing.T) {
	for _, v := range verbs() {
		help := func(args []string) string {
			root := rootFor(new(bool), args)
			c, _, err := root.Find([]string{v.name})
			if err != nil || c.Name() != v.name {
				t.Fatalf("%s is found as %q, %v", v.name, c.Name(), err)
			}
			var out strings.Builder
			c.SetOut(&out)
			if err := c.Help(); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		if alone, among := help([]string{v.name}), help(nil); alone != among || alone == "" {
			t.Errorf("%s --help, alone:\n%s\namong the others:\n%s", v.name, alone, among)
		}
	}
}
