package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shelf is a folder with a model, a folder above models, a hidden one and a file, beside a cache of
// the Hub with one whole repo and one without a configuration.
func shelf(t *testing.T) (dir, cache string) {
	t.Helper()
	dir = t.TempDir()
	cache = filepath.Join(dir, ".cache", "hub")
	for _, path := range []string{"tiny/config.json", "small.gguf", "team/small/config.json",
		".hidden/config.json", "notes",
		".cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c1/config.json",
		".cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c2/config.json",
		".cache/hub/models--Qwen--Empty/refs/main",
		".cache/hub/datasets--Qwen--Data/snapshots/c1/config.json"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, cache
}

func TestCompleteModels(t *testing.T) {
	t.Parallel()
	dir, cache := shelf(t)
	const noSpace, space = ":6", ":4"
	for _, c := range []struct {
		line string
		want []string // the last is cobra's word on spaces and files
	}{
		{"serve |", []string{"team/", "tiny", "small.gguf", "Qwen/Qwen3-0.6B", noSpace}},
		{"serve t", []string{"team/", "tiny", noSpace}},
		{"serve ti", []string{"tiny", space}},
		{"serve ./ti", []string{"./tiny", space}},
		{"serve team/", []string{"team/small", space}},
		{"serve .h", []string{".hidden", space}},
		{"serve " + dir + "/ti", []string{dir + "/tiny", space}},
		{"serve Qwen/", []string{"Qwen/Qwen3-0.6B", space}},
		{"serve --download-dir /nowhere Qwen/", []string{space}},
		{"serve tiny |", []string{space}},
		{"chat ti", []string{"tiny", space}},
		{"chat -q |", []string{space}}, // not --quantization, as serve has it
		{"generate --model ti", []string{"tiny", space}},
		{"bench latency --model ti", []string{"tiny", space}},
		{"serve --tokenizer ti", []string{"tiny", space}},
		{"serve sm", []string{"small.gguf", space}},
		{"doctor ti", []string{"tiny", space}},
		{"rm Qwen/Q", []string{"Qwen/Qwen3-0.6B", space}},
		{"pull Q", []string{"Qwen/Empty", "Qwen/Qwen3-0.6B", space}},
		{"serve --max-model-l",
			[]string{"--max-model-len\tmost tokens of a prompt and its output together, such as " +
				"4096, 4k or auto (default: what the model allows)", space}},
	} {
		args := strings.Fields("__complete " + c.line)
		if args[len(args)-1] == "|" {
			args[len(args)-1] = ""
		}
		p := command(t, "", args...)
		p.cmd.Dir = dir
		p.cmd.Env = append(p.cmd.Env, "HF_HUB_CACHE="+cache)
		if code := p.start().exit(); code != 0 {
			t.Errorf("%s: exit code %d: %s", c.line, code, p.err.String())
		}
		if got := strings.Split(strings.TrimSpace(p.out.String()), "\n"); !slices.Equal(got,
			c.want) {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestCompleteValues completes the values of flags by what was declared of them.
func TestCompleteValues(t *testing.T) {
	t.Parallel()
	const space, files, dirs = ":4", ":0", ":16"
	for _, c := range []struct {
		line string
		want []string
	}{
		// Values that are words: by name, by another spelling, after "=", and of flags that do
		// nothing here.
		{"serve --dtype f", []string{"float16", "float32", "float", space}},
		{"serve -tp 2 --scheduling-policy |", []string{"fcfs", "priority", space}},
		{"serve --served_model_name a b --on-model-change=k", []string{"keep", space}},
		{"serve -q gptq", []string{"gptq", "gptq_marlin", space}},
		{"serve --tool-call-parser herm", []string{"hermes", space}},
		{"serve --cpu-isa avx512", []string{"avx512", "avx512bf16", space}},
		{"serve --kv-cache-dtype b", []string{"bfloat16", space}},
		{"generate --distributed-executor-backend |", []string{"uni", "mp", "ray", space}},
		{"bench serve --backend openai-", []string{"openai-chat", space}},
		// Paths, which the shell completes: any file, or folders.
		{"serve --chat-template |", []string{files}},
		{"serve --config |", []string{files}},
		{"run-batch -i |", []string{files}},
		{"bench report |", []string{files}},
		{"serve --download-dir |", []string{dirs}},
		{"serve --generation-config t", []string{dirs}},
		{"copy |", []string{dirs}},
		// What only the user knows.
		{"serve --port |", []string{space}},
		{"generate |", []string{space}},
	} {
		args := strings.Fields("__complete " + c.line)
		if args[len(args)-1] == "|" {
			args[len(args)-1] = ""
		}
		var started bool
		root := rootFor(&started, nil)
		root.SetArgs(completionArgs(root, args))
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", c.line, err)
		}
		if got := strings.Split(strings.TrimSpace(out.String()), "\n"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestCompleteInBash lets bash itself complete, with the script that it is given. Of
// bash-completion, which that needs, only what finds words and folders is stood in for.
func TestCompleteInBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	dir, cache := shelf(t)
	bin := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(bin, "eagleray")); err != nil {
		t.Fatal(err)
	}
	const script = `
source <(eagleray completion bash)
_get_comp_words_by_ref() {
  words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${words[cword]} prev=${words[cword-1]}
}
compopt() { :; }
_filedir() { COMPREPLY=($(compgen "$1" -- "$cur")); }
COMP_WORDS=(eagleray "$@") COMP_CWORD=$# COMP_LINE="eagleray $*" COMP_TYPE=9
COMP_POINT=${#COMP_LINE}
complete -p eagleray
__start_eagleray
printf '%s\n' "${COMPREPLY[@]}"`
	for line, want := range map[string]string{"serve ti": "tiny", "serve team/s": "team/small",
		"chat Qw": "Qwen/Qwen3-0.6B", "serv": "serve", "serve --max-model-le": "--max-model-len",
		"serve --dtype bf": "bfloat16", "serve -tp 2 --log-format js": "json",
		"serve --download-dir tea": "team",
		"rm Qwen/Qwen":             "Qwen/Qwen3-0.6B"} {
		args := append([]string{"--norc", "-c", script, "bash"}, strings.Fields(line)...)
		c := exec.Command(bash, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), asProgram+"=1", "HF_HUB_CACHE="+cache,
			"PATH="+bin+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		// The description follows only when there is a choice.
		if got := lines[len(lines)-1]; err != nil || len(lines) != 2 ||
			strings.TrimSpace(got) != want || !strings.Contains(lines[0],
			"__start_eagleray eagleray") {
			t.Errorf("%q: %v: %q, want %q", line, err, out, want)
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string]string{
		"bash": "complete -o default -F __start_eagleray eagleray",
		"zsh":  "#compdef eagleray", "fish": "complete -c eagleray"} {
		code, script, _ := execute(t, "", "completion", shell)
		if code != 0 || !strings.Contains(script, want) {
			t.Errorf("%s: exit code %d, %d bytes without %q", shell, code, len(script), want)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		check := exec.Command(path, "-n", "/dev/stdin")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v: %s", shell, err, out)
		}
	}
}
