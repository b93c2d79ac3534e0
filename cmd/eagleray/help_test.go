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
		"kv-cache-dtype": {"values: auto, bfloat16, float16, fp8, "},
		"cpu-offload-gb": {"known to vLLM: weights are in memory already"},
		"all": {"\nFlags:\n  --check[=where] ", "\nCacheConfig:\n  --block-size int ",
			"--port", "\nWithout effect, or refused:\n", "--optimization-level"},
		"page":  {"\nFrontend:\n", "--optimization-level"},
		"dtype": {"values: auto, bfloat16, float16, half, float32, float\n"},
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
		if topic == "cacheconfig" && strings.Contains(out.String(), "--cpu-offload-gb") {
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

// TestShortHelp: what people see first has a screen's height, names flags that there are, and says
// where the others are.
func TestShortHelp(t *testing.T) {
	var started bool
	root := rootFor(&started, nil)
	for _, args := range []string{"serve", "generate", "chat", "run-batch", "doctor",
		"bench throughput"} {
		c, _, err := root.Find(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		text := shortUsage(c, 100)
		for _, want := range []string{"\nModel:\n  --model model ", "(-tp)", "--help=listgroup",
			"eagleray " + args + " --help=all shows all "} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", args, want, text)
			}
		}
		if strings.Contains(text, "--stall-warning") ||
			strings.Contains(text, "\n  --port ") != (args == "serve" || args == "doctor") {
			t.Errorf("%s shows other flags:\n%s", args, text)
		}
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 101 {
				t.Errorf("%s: %d columns: %q", args, len([]rune(line)), line)
			}
		}
	}
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(shortUsage(serve, 80), "\n"); lines > 40 {
		t.Errorf("serve --help has %d lines", lines)
	}
	for _, s := range common {
		for _, b := range s.lines {
			if serve.Flags().Lookup(b.flag) == nil {
				t.Errorf("%s: serve has no --%s", s.title, b.flag)
			}
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
