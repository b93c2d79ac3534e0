package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// someTokenizer is a folder that has one.
const someTokenizer = "../../testdata/models/go-std-tiny"

// shape are fields of config.json.
type shape map[string]any

// llama is a model of some sizes.
func llama(hidden, inner, layers, heads, kvHeads, vocab, positions int) shape {
	return shape{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"},
		"hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
		"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
		"num_attention_heads": heads, "num_key_value_heads": kvHeads, "vocab_size": vocab,
		"max_position_embeddings": positions, "tie_word_embeddings": false}
}

// with is a shape with other fields.
func (s shape) with(more shape) shape {
	all := maps.Clone(s)
	maps.Copy(all, more)
	return all
}

// sparseModel makes the folder of a model whose weights are zeros that take no room on the disk.
func sparseModel(t *testing.T, s shape) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	specs, err := model.Expected(cfg, model.Stage{})
	if err != nil {
		t.Fatal(err)
	}
	header := map[string]any{}
	at := int64(0)
	for _, x := range specs {
		size := int64(2)
		for _, n := range x.Shape {
			size *= int64(n)
		}
		header[x.Name] = map[string]any{"dtype": "BF16", "shape": x.Shape,
			"data_offsets": []int64{at, at + size}}
		at += size
	}
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	weights := filepath.Join(dir, "model.safetensors")
	for path, content := range map[string][]byte{filepath.Join(dir, "config.json"): raw,
		weights: append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(weights, int64(8+len(head))+at); err != nil {
		t.Skip(err)
	}
	return dir
}

// resident is the memory of a process and of its children, pages that they share counted once.
func resident(t *testing.T, p *program) (bytes int64) {
	t.Helper()
	pids := []int{p.cmd.Process.Pid}
	for _, pid := range workers(t, pids[0]) {
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			t.Skip(err)
		}
		m := regexp.MustCompile(`(?m)^Pss: +(\d+) kB`).FindSubmatch(raw)
		kb, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		bytes += kb << 10
	}
	return bytes
}

// planned is the total of the plan that serve --check prints.
func planned(t *testing.T, args ...string) int64 {
	t.Helper()
	code, out, errOut := execute(t, "", append([]string{"serve", "--check"}, args...)...)
	m := regexp.MustCompile(`(?m)^  together +(\d+)`).FindStringSubmatch(out)
	if code != 0 || m == nil {
		t.Fatalf("exit code %d, %s%s", code, out, errOut)
	}
	t.Logf("%s", out)
	mb, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mb << 20
}

// TestPlannedMemoryIsEnough has servers compute all that takes memory: a KV cache that is full,
// steps of as many tokens as there may be, logits of as many rows, tokens all over the vocabulary.
// What they have in memory then is not more than was planned, nor much less. EAGLERAY_MEASURE has
// models of 1 to 3 GB.
func TestPlannedMemoryIsEnough(t *testing.T) {
	if testing.Short() && os.Getenv("EAGLERAY_MEASURE") == "" {
		t.Skip("computes for some seconds")
	}
	const rows, blocks = 1024, 128
	dense := llama(512, 1024, 4, 8, 4, 32000, rows)
	if os.Getenv("EAGLERAY_MEASURE") != "" {
		dense = llama(2048, 6144, 6, 16, 8, 100000, rows)
	}
	mixture := dense.with(shape{"model_type": "qwen3_moe",
		"architectures": []string{"Qwen3MoeForCausalLM"},
		"head_dim":      64, "num_experts": 16, "num_experts_per_tok": 2,
		"moe_intermediate_size": 256, "norm_topk_prob": true, "decoder_sparse_step": 1})
	opt := dense.with(shape{"model_type": "opt", "architectures": []string{"OPTForCausalLM"},
		"activation_function": "relu", "ffn_dim": dense["intermediate_size"],
		"word_embed_proj_dim":  dense["hidden_size"],
		"do_layer_norm_before": true})
	for _, name := range []string{"intermediate_size", "hidden_act", "rms_norm_eps",
		"num_key_value_heads"} {
		delete(opt, name)
	}
	for _, c := range []struct {
		name  string
		shape shape
		args  string
	}{
		{"dense tp1", dense, ""},
		{"dense tp2", dense, "-tp 2"},
		{"dense pp2", dense, "-pp 2"},
		{"dense dp2", dense, "-dp 2"},
		{"tied float32", dense.with(shape{"tie_word_embeddings": true}), "--dtype float32"},
		{"mixture tp2", mixture, "-tp 2"},
		{"mixture pcp2", mixture, "-pcp 2"},
		{"opt tp1", opt, ""},
		{"dummy tp2", dense, "-tp 2 --load-format dummy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{sparseModel(t, c.shape), "--skip-tokenizer-init", "--port", "0",
				"--num-gpu-blocks-override", strconv.Itoa(blocks), "--max-num-batched-tokens",
				strconv.Itoa(rows),
				"--max-num-seqs", "64"}, strings.Fields(c.args)...)
			plan := planned(t, args...)
			p, url := ready(t, command(t, "", append([]string{"serve"}, args...)...))
			idle := resident(t, p)
			// Twice as many tokens as the caches of two engines hold.
			fill(t, url, c.shape["vocab_size"].(int), 4*blocks*16/(rows-8), rows-8)
			used := resident(t, p)
			t.Logf("MEASURED %-12s planned %5d MiB, ready %5d MiB, full %5d MiB, planned/full %.2f",
				c.name, plan>>20, idle>>20, used>>20, float64(plan)/float64(used))
			processes := int64(1 + len(workers(t, p.cmd.Process.Pid)))
			if used > plan || plan > used*13/10+processes*(64<<20) {
				t.Errorf("%d MiB are in use, %d were planned", used>>20, plan>>20)
			}
		})
	}
}

// TestServesWithinItsLimit runs a server in a control group in which its model fits with little to
// spare, and fills its KV cache: nothing is killed. In one that is too small nothing is started.
func TestServesWithinItsLimit(t *testing.T) {
	t.Parallel()
	if detector > 1 {
		t.Skip("the race detector takes more memory than the model")
	}
	dir := sparseModel(t, llama(256, 512, 4, 4, 4, 8000, 2048))
	limited := func(bytes int64, verb string, args ...string) *program {
		p := command(t, "", append([]string{verb, "--model", dir}, args...)...)
		// The program is what enters the group: what it needs itself is not there before the limit
		// is.
		p.cmd.Args = append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`,
			filepath.Join(string(memoryGroup(t, bytes)), "cgroup.procs"), p.cmd.Path},
			p.cmd.Args[1:]...)
		p.cmd.Path = "/bin/sh"
		return p
	}
	args := []string{"--skip-tokenizer-init", "--port", "0", "--max-num-seqs", "16",
		"--max-num-batched-tokens", "2048", "-tp", "2", "--cpu-threads", "1"}
	const limit = 500 << 20
	p, url := ready(t, limited(limit, "serve", args...))
	m := regexp.MustCompile(`kv_cache_tokens=(\d+)`).FindStringSubmatch(p.err.String())
	tokens, err := strconv.Atoi(m[1])
	if err != nil || tokens < 2048 || tokens > 300<<10 {
		t.Fatalf("a KV cache of %s tokens", m[1])
	}
	fill(t, url, 8000, tokens/2000+2, 2000)
	if n := figureOf(t, url, "eagleray:prompt_tokens_total"); n < float64(tokens) {
		t.Errorf("%v tokens were computed, the cache has %d", n, tokens)
	}
	if text := p.err.String(); strings.Contains(text, "killed") || strings.Contains(text,
		"failed") {
		t.Error("a rank was lost")
	}
	p.signal(syscall.SIGTERM)
	p.exit()

	for _, verb := range []string{"serve", "serve --check", "doctor", "generate"} {
		words := strings.Fields(verb)
		more := append(words[1:], args...)
		if verb == "generate" {
			more = []string{"--tokenizer", someTokenizer, "-tp", "2", "--max-num-batched-tokens",
				"2048", "x"}
		}
		p := limited(160<<20, words[0], more...).start()
		if verb == "doctor" {
			p.cmd.Stderr = io.Discard
		}
		if code := p.exit(); code != exitError {
			t.Errorf("%s: exit code %d", verb, code)
		}
		if text := p.out.String() + p.err.String(); !strings.Contains(text,
			"2 ranks do not fit into the memory of localhost") || !strings.Contains(text,
			"memory.") || strings.Contains(text, "killed") {
			t.Errorf("%s: %s", verb, text)
		}
	}
}

// TestTooLargeIsRefused asks for a model of 141 GB, and for a KV cache of 900 GB of a small one:
// the answer comes before a byte of weights is read, with the numbers.
func TestTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	if left, known := machine.Memory().Left(); !known || left > 100<<30 {
		t.Skip("this machine is not too small")
	}
	dir := sparseModel(t, llama(16384, 57344, 20, 128, 8, 32000, 8192))
	model := []string{"1 rank does not fit into the memory of localhost: 127.", " GiB of weights, ",
		" MiB of embeddings, ", "KV cache for one sequence of --max-model-len 8192", " are missing",
		"raise the limit"}
	cache := []string{"GiB of KV cache (--kv-cache-memory-bytes)", ": --kv-cache-memory-bytes ",
		"M fits; or"}
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"serve --port 0 --skip-tokenizer-init MODEL", exitError, model},
		{"serve --check --skip-tokenizer-init MODEL", exitError, model},
		{"doctor --port 0 --skip-tokenizer-init MODEL", exitError, model},
		{"generate --tokenizer " + someTokenizer + " --model MODEL x", exitError, model},
		{"serve --port 0 --skip-tokenizer-init -tp 4 -dp 2 MODEL", exitError,
			[]string{"8 ranks do not fit"}},
		{"serve --port 0 --kv-cache-memory-bytes 900G", exitUsage, cache},
		{"serve --check --kv-cache-memory-bytes 900G", exitUsage, cache},
		{"generate --kv-cache-memory-bytes 900G x", exitUsage, cache},
		{"doctor --port 0 --kv-cache-memory-bytes 900G", exitError, []string{cache[0],
			cache[1][2:]}},
		{"serve --port 0 --num-gpu-blocks-override 100000000 --max-model-len 1024", exitUsage,
			[]string{"KV cache (--num-gpu-blocks-override)", ": --num-gpu-blocks-override "}},
	} {
		code, out, errOut := execute(t, "", strings.Fields(strings.ReplaceAll(c.args, "MODEL",
			dir))...)
		if code != c.code {
			t.Errorf("%s: exit code %d", c.args, code)
		}
		for _, want := range c.want {
			if !strings.Contains(out+errOut, want) {
				t.Errorf("%s: no %q in %s", c.args, want, out+errOut)
			}
		}
	}
}

// fill asks for two tokens after each of several prompts of so many tokens, at the same time. The
// first one wants the log-probabilities of its prompt.
func fill(t *testing.T, url string, vocab, requests, tokens int) {
	t.Helper()
	done := make(chan error, requests)
	for i := range requests {
		prompt := make([]string, tokens)
		for j := range prompt {
			prompt[j] = strconv.Itoa((i*7919 + j*104729) % vocab)
		}
		more := ""
		if i == 0 {
			more = `,"prompt_logprobs":1`
		}
		body := `{"prompt":[` + strings.Join(prompt, ",") + `],"max_tokens":2,"ignore_eos":true` +
			more + `}`
		go func() {
			resp, err := http.Post(url+"/v1/completions", "application/json",
				strings.NewReader(body))
			if err == nil {
				var text []byte
				text, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil && resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s: %s", resp.Status, text)
				}
			}
			done <- err
		}()
	}
	for range requests {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// figureOf is the sum of a metric.
func figureOf(t *testing.T, url, name string) (sum float64) {
	t.Helper()
	for line := range strings.Lines(scraped(t, url)) {
		if strings.HasPrefix(line, name+"{") {
			v, _ := strconv.ParseFloat(strings.TrimSpace(
				line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:]), 64)
			sum += v
		}
	}
	return sum
}
