package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Mistakes in a command line exit with 2, other errors with 1; both in one line that names what is
// wrong.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	strange := filepath.Dir(put("strange/config.json",
		`{"architectures":["StrangeForCausalLM"],"model_type":"strange"}`))
	empty := filepath.Dir(put("empty/readme", ""))
	cached := filepath.Join(dir, "models--org--name")
	if err := os.MkdirAll(filepath.Join(cached, "snapshots"), 0o700); err != nil {
		t.Fatal(err)
	}
	badFile := put("bad.yaml", "no-such-flag: 1")
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"serve --no-such-flag", 2, "--no-such-flag"},
		{"serve -x", 2, "-x"},
		{"serve --port", 2, "--port"},
		{"serve --port abc", 2, "--port"},
		{"serve --port 70000", 2, "--port 70000"},
		{"serve --dtype int4", 2, "--dtype"},
		{"serve --block-size 7", 2, "--block-size 7"},
		{"serve -pp 5", 2, "no layout of 5 ranks works, the nearest ones that do are PP 4, TP 2 " +
			"× PP 2, TP 4"},
		{"serve -pp 2 --pipeline-layer-split 1,2", 2,
			"--pipeline-layer-split 1,2 has 3 layers, the model has 4"},
		{"serve -pp 2 --pipeline-layer-split 4", 2, "--pipeline-layer-split 4 has 1 stages"},
		{"serve --lora-modules a=b", 2, "--lora-modules without --enable-lora"},
		{"serve a b", 2, "0 to 1 arguments"},
		{"serve --check -tp 3", 2, "layouts of 3 ranks that work are PP 3"},
		{"serve --check " + strange, 1, "StrangeForCausalLM"},
		{"serve --check --max-model-len 4096", 2, "2048 positions"},
		{"serve --config /no/such/file.yaml", 2, "--config"},
		{"serve --config " + badFile, 2, "no-such-flag"},
		{"sreve", 2, "did you mean serve?"},
		{"bench nothing", 2, "nothing"},
		{"bench queue", 2, "eagleray-lab"},
		{"bench chaos --faults kill,rain", 2, "--faults \"rain\""},
		{"bench chaos --faults cut", 2, "--faults cut needs --queue-transport link"},
		{"bench chaos --faults replace -- --on-model-change adopt", 2, "--faults replace needs"},
		{"bench chaos --streams 0", 2, "--streams"},
		{"completion tcsh", 2, "tcsh"},
		{"serve --served-model-name a ./model", 2, `write the model "./model" before it`},
		{"run-batch -i in.jsonl", 2, "-o, --output-file is required"},
		{"run-batch -o out.jsonl", 2, "-i, --input-file is required"},
		{"run-batch -i x.jsonl -o x.jsonl", 2,
			"--input-file and --output-file are the same: x.jsonl"},
		{"run-batch -i x.jsonl -o y.jsonl --output-tmp-dir /tmp", 2,
			"--output-tmp-dir is for an --output-file"},
		{"run-batch -i /none.jsonl -o y.jsonl", 1,
			"--input-file: open /none.jsonl: no such file or directory"},
		{"run-batch -i /dev -o y.jsonl", 1, "--input-file: /dev is a directory"},
		{"version now", 2, "no argument"},
		{"generate --temperature -1 x", 2, "--temperature -1"},
		{"generate --top-p 0 x", 2, "--top-p 0"},
		{"generate --skip-tokenizer-init x", 2, "--skip-tokenizer-init"},
		{"generate --raw --system y x", 2, "--system"},
		{"generate ./no-model hi", 2, `"./no-model" is a model where prompts are expected: say ` +
			"--model ./no-model"},
		{"generate " + empty, 2, "--model " + empty},
		{"generate Qwen/Qwen3-0.6B:Q8_0 hi", 2, "--model Qwen/Qwen3-0.6B:Q8_0"},
		{"generate https://huggingface.co/org/name hi", 2, "--model https://"},
		{"generate s3://models/llama hi", 2, "--model s3://models/llama"},
		{"serve s3://x", 1, `"x" is not the name of a bucket`},
		{"serve abfss://c@a/m", 1, "s3:// and gs:// are"},
		{"generate model.gguf", 2, "--model model.gguf"},
		{"serve https://huggingface.co/datasets/org/name", 1, "not that of a model"},
		{"serve https://huggingface.co/org/name/blob/main/x.gguf", 1, "org/name:Q4_K_M"},
		{"serve https://example.org/org/name", 1, "not one of the Hub's"},
		{"serve --check " + cached, 1, "eagleray pull org/name"},
		{"serve --gpu-memory-utilisation 0.9", 2, "did you mean --gpu-memory-utilization?"},
		{"serve --max-model-length 4k", 2, "did you mean --max-model-len?"},
		{"serve -tp 3", 2, "--tensor-parallel-size 3: tensor parallel size 3 does not divide the " +
			"8 chunks that every sum between ranks has: layouts of 3 ranks that work are PP 3"},
		{"serve model.gguf", 1, `model "model.gguf": no such file`},
		{"generate --model org/model.safetensors x", 1, "no such file"},
		{"chat --url http://127.0.0.1:1 model", 2, "--url"},
		{"bench serve extra", 2, "no argument"},
		{"bench serve --backend tgi", 2, "--backend"},
		{"bench serve --dataset-name sonnet", 2, "known to vLLM and not supported"},
		{"bench serve --dataset-name sharegpt", 2, "--dataset-path"},
		{"bench serve --lora-assignment fair", 2, "--lora-assignment"},
		{"bench serve --plot-timeline", 2, "--plot-timeline"},
		{"bench serve --profile", 2, "--profile"},
		{"bench serve --goodput ttft:50 itl:3", 2, "--goodput"},
		{"bench serve --percentile-metrics ttft,xyz", 2, "--percentile-metrics"},
		{"bench serve --metric-percentiles 101", 2, "--metric-percentiles"},
		{"bench serve --request-rate 0", 2, "--request-rate 0"},
		{"bench serve --ramp-up-strategy linear", 2, "--ramp-up-start-rps"},
		{"bench serve --max-concurrency 0", 2, "--max-concurrency 0"},
		{"bench serve --extra-body [1]", 2, "--extra-body"},
		{"bench serve --header nothing", 2, "--header"},
		{"bench serve --base-url localhost:8000", 2, "--base-url"},
		{"bench latency --output-len 0", 2, "--output-len 0"},
		{"bench latency --output-len 4000", 2, "--output-len 4000"},
		{"bench throughput --num-prompts 0", 2, "--num-prompts 0"},
		{"bench throughput --n 0", 2, "--n 0"},
		{"serve /no/such/model", 1, "/no/such/model"},
		{"serve " + empty, 1, "config.json"},
		{"serve " + strange, 1, "StrangeForCausalLM"},
		{"generate --model " + strange + " x", 1, "StrangeForCausalLM"},
		{"serve --max-model-len 100000", 2, "--max-model-len"},
		{"bench serve --port 1 --ready-check-timeout-sec 0", 1, "127.0.0.1:1"},
		{"bench serve --tokenizer /no/such/tokenizer --model m --port 1 " +
			"--ready-check-timeout-sec 0", 1, "--tokenizer"},
		{"chat --url http://127.0.0.1:1", 1, "127.0.0.1:1"},
	} {
		code, stdout, stderr := execute(t, "hello\n", strings.Fields(tt.args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		last := lines[len(lines)-1]
		if code != tt.code || !strings.HasPrefix(last, "eagleray: ") || !strings.Contains(last,
			tt.want) {
			t.Errorf("%s: exit code %d, want %d; error %q, want %q", tt.args, code, tt.code, stderr,
				tt.want)
		}
		if len(lines) != 1 || stdout != "" {
			t.Errorf("%s: printed %q and %q, want one line", tt.args, stdout, stderr)
		}
	}
}

// TestCheck finds nothing wrong, and starts nothing; it prints the plan of the memory of a model
// that is there.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args      string
		plan      bool
		says, err string
	}{
		{"serve --check -tp 2 --port 70", true, "checked: flags, config.json (qwen3, bfloat16, " +
			"2048 positions), names and shapes of the weights, layout (1 x TP 2), tokenizer and " +
			"chat template, generation_config.json, memory\nnot checked: values of the weights\n",
			""},
		{"serve --check no/such-repo", false, "checked: flags\nnot checked: files of " +
			`"no/such-repo", which is no folder here (eagleray pull no/such-repo fetches them)` +
			"\n", ""},
		{"serve --check=elsewhere /no/such/folder --ssl-certfile /no --ssl-keyfile /no", false,
			`not checked: files of "/no/such/folder", which is no folder here` + "\n", ""},
		{"serve --check=elsewhere --load-format dummy --api-server-count 4", false,
			"positions), layout (1 x TP 1)", "warning: --api-server-count has no effect"},
		{"serve --check=elsewhere --kv-cache-memory-bytes 2T", false,
			"not checked: values of the weights, memory\n", ""},
	} {
		code, out, errOut := execute(t, "", strings.Fields(tt.args)...)
		plan := strings.HasPrefix(out, "memory of localhost, in MiB\n") &&
			strings.Contains(out, "\n  KV cache ")
		if code != 0 || !strings.Contains(errOut, tt.err) || (errOut == "") != (tt.err == "") ||
			plan != tt.plan || !strings.Contains(out, tt.says) {
			t.Errorf("%s: exit code %d, %q, %q", tt.args, code, out, errOut)
		}
	}
	for args, want := range map[string]string{
		"--check=never": "--check",
		"--check --ssl-certfile /no --ssl-keyfile /no": "--ssl-certfile, --ssl-keyfile: open /no",
		"--check --otlp-traces-endpoint grpc://c:4317": "--otlp-traces-endpoint: ",
	} {
		if code, _, errOut := execute(t, "", append([]string{"serve"},
			strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, %q", args, code, errOut)
		}
	}
	for _, args := range []string{"./no/folder", "--tokenizer ./no/folder"} {
		if code, _, errOut := execute(t, "", append([]string{"serve", "--check"},
			strings.Fields(args)...)...); code != exitError || !strings.Contains(errOut,
			`model "./no/folder": no such file or directory`) {
			t.Errorf("%s: exit code %d, %q", args, code, errOut)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                         "eagleray serve",
		"--help":                   "EAGLERAY_MAX_MODEL_LEN",
		"serve --help":             "--tensor-parallel-size",
		"bench":                    "eagleray bench latency",
		"bench serve --help":       "--goodput",
		"help bench throughput":    "--disable-detokenize",
		"version":                  "eagleray ",
		"completion bash":          "__start_eagleray",
		"completion zsh":           "#compdef eagleray",
		"completion fish":          "complete -c eagleray",
		"__complete serve --max-m": "--max-model-len",
		"__complete bench ser":     "serve",
	} {
		code, stdout, stderr := execute(t, "", strings.Fields(args)...)
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, printed %q, errors %q; want %q", args, code, stdout, stderr,
				want)
		}
		// Flags that are only known are not advertised.
		if strings.Contains(stdout, "--enforce-eager") {
			t.Errorf("%q shows --enforce-eager", args)
		}
	}
}
