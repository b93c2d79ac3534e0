package rayactor

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The first rows are vLLM's test_ray_env_utils.py: everything is sent but what is worker-specific
// or listed.
func TestEnvironmentDecides(t *testing.T) {
	const (
		sent     = "sent"
		withheld = "withheld"
	)
	for _, c := range []struct {
		entry string
		want  string // sent, withheld, or part of the reason for excluding it
	}{
		{"NCCL_DEBUG=INFO", sent},
		{"NCCL_SOCKET_IFNAME=eth0", sent},
		{"HF_TOKEN=hf_abc", sent},
		{"HUGGING_FACE_HUB_TOKEN=hf_abc", sent},
		{"LMCACHE_LOCAL_CPU=True", sent},
		{"PYTHONHASHSEED=42", sent},
		{"MYLIB_FOO=bar", sent},
		{"EMPTY=", sent},
		{"EQUALS=a=b=c", sent},
		{"LANG=C.UTF-8", sent},
		{"HF_HOME=/data/hf", sent},
		{"GODEBUG=madvdontneed=1", sent},
		{"EAGLERAY_MAX_MODEL_LEN=4096", sent},
		{"EAGLERAY_MAX_NUM_BATCHED_TOKENS=8192", sent},
		{"EAGLERAY_LONG_PREFILL_TOKEN_THRESHOLD=512", sent},
		{"TOKENIZERS_PARALLELISM=false", sent},
		{"GIT_AUTHOR_NAME=x", sent},
		{"MONKEY=x", sent},
		{"COMPASS=x", sent},
		{"MY_PORT=8080", sent},
		{"NO_PROXY=10.0.0.0/8", sent},
		{"HTTP_PROXY=http://proxy:3128/", sent},
		{"REMOTE=ssh://git@host:22/x", sent},

		{"CUDA_VISIBLE_DEVICES=0,1", "devices"},
		{"HIP_VISIBLE_DEVICES=0", "devices"},
		{"ROCR_VISIBLE_DEVICES=0", "devices"},
		{"NVIDIA_VISIBLE_DEVICES=all", "devices"},
		{"LOCAL_RANK=0", "rank"}, {"RANK=0", "rank"}, {"WORLD_SIZE=1", "rank"},
		{"MASTER_PORT=1", "rank"}, {"SLURM_PROCID=0", "rank"},
		{"VLLM_HOST_IP=10.0.0.1", "address"}, {"VLLM_HOST_PORT=1", "address"},
		{"VLLM_PORT=1", "address"},
		{"EAGLERAY_HOST_IP=10.0.0.1", "address"}, {"EAGLERAY_NODE_IP=10.0.0.1", "address"},
		{"HOSTNAME=h", "address"},
		{"RAY_ADDRESS=auto", "way to Ray"}, {"RAY_AUTH_TOKEN=x", "way to Ray"},
		{"EAGLERAY_RAY_ADDRESS=x", "way to Ray"}, {"EAGLERAY_PG_ID=x", "way to Ray"},
		{"NOTIFY_SOCKET=/run/x", "service manager"}, {"JOURNAL_STREAM=8:1", "service manager"},
		{"HOME=/root", "session"}, {"USER=x", "session"}, {"LOGNAME=x", "session"},
		{"SHELL=x", "session"}, {"SHLVL=1", "session"},
		{"_=/bin/x", "session"}, {"PWD=/x", "session"}, {"OLDPWD=/x", "session"},
		{"TERM=xterm", "session"}, {"DISPLAY=:0", "session"},
		{"SSH_AUTH_SOCK=/x", "session"}, {"SSH_CONNECTION=x", "session"},
		{"XDG_RUNTIME_DIR=/run", "session"}, {"BASH_FUNC_f%%=() { :; }", "session"},
		{"PATH=/bin", "files"}, {"LD_LIBRARY_PATH=/x", "files"}, {"LD_PRELOAD=x.so", "files"},
		{"TMPDIR=/x", "files"}, {"PYTHONPATH=/x", "files"},
		{"PYTHONUNBUFFERED=1", "files"}, {"VIRTUAL_ENV=/x", "files"}, {"CONDA_PREFIX=/x", "files"},
		{"OMP_NUM_THREADS=8", "cores"}, {"GOMAXPROCS=8", "cores"}, {"GOMEMLIMIT=1GiB", "cores"},
		{"KUBERNETES_SERVICE_HOST=10.0.0.1", "service link"},
		{"KUBERNETES_PORT=tcp://10.0.0.1:443", "service link"},
		{"REDIS_SERVICE_HOST=10.0.0.1", "service link"}, {"REDIS_SERVICE_PORT=1", "service link"},
		{"REDIS_SERVICE_PORT_METRICS=1", "service link"},
		{"REDIS_PORT=tcp://10.0.0.1:1", "service link"},
		{"REDIS_PORT_6379_TCP=tcp://x", "service link"},
		{"REDIS_PORT_6379_TCP_ADDR=x", "service link"},

		{"AWS_ACCESS_KEY_ID=x", withheld}, {"AWS_SECRET_ACCESS_KEY=x", withheld},
		{"AWS_SESSION_TOKEN=x", withheld},
		{"GOOGLE_APPLICATION_CREDENTIALS=/x", withheld}, {"OPENAI_API_KEY=x", withheld},
		{"VLLM_API_KEY=x", withheld},
		{"EAGLERAY_API_KEY=x", withheld}, {"WANDB_APIKEY=x", withheld},
		{"GITHUB_TOKEN=x", withheld}, {"TOKEN=x", withheld},
		{"NPMTOKEN=x", withheld}, {"github_token=x", withheld}, {"PGPASSWORD=x", withheld},
		{"MYSQL_PWD=x", withheld}, {"DB_PASS=x", withheld},
		{"SMTP_PASSWD=x", withheld}, {"CLIENTSECRET=x", withheld}, {"SIGNING_KEY=x", withheld},
		{"TLS_PRIVATE_KEY_PEM=x", withheld},
		{"NPM_AUTH=x", withheld}, {"SENTRY_DSN=x", withheld}, {"TOKEN_SIZED_FOO=x", withheld},
		{"HTTPS_PROXY=http://me:pw@proxy:3128", withheld}, {"CACHE=redis://:pw@host/0", withheld},
		{"CERT=-----BEGIN RSA PRIVATE KEY-----\nx", withheld},
	} {
		name, value, _ := strings.Cut(c.entry, "=")
		plan := Environment([]string{c.entry, "EAGLERAY_CONFIG_ROOT=" + t.TempDir()}, EnvOptions{})
		got := sent
		if slices.Contains(plan.Withheld, name) {
			got = withheld
		}
		for _, x := range plan.Excluded {
			if x.Name == name {
				got = x.Reason
			}
		}
		if c.want == sent || c.want == withheld {
			if got != c.want {
				t.Errorf("%s: got %s, want %s", c.entry, got, c.want)
			}
		} else if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want it excluded as %s", c.entry, got, c.want)
		}
		if v, ok := plan.Send[name]; ok != (c.want == sent) || ok && v != value {
			t.Errorf("%s: sends %q, %v", c.entry, v, ok)
		}
	}
}

func TestEnvironmentAllow(t *testing.T) {
	plan := Environment([]string{"OPENAI_API_KEY=k", "GITHUB_TOKEN=g", "LD_LIBRARY_PATH=/l",
		"CUDA_VISIBLE_DEVICES=0", "RAY_ADDRESS=r"},
		EnvOptions{Allow: []string{"OPENAI_API_KEY", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
			"NOT_SET"}})
	if want := map[string]string{"OPENAI_API_KEY": "k",
		"LD_LIBRARY_PATH": "/l"}; !reflect.DeepEqual(plan.Send, want) {
		t.Errorf("sends %v, want %v", plan.Send, want)
	}
	if want := []string{"GITHUB_TOKEN"}; !slices.Equal(plan.Withheld, want) {
		t.Errorf("withholds %v, want %v", plan.Withheld, want)
	}
	if len(plan.Excluded) != 2 || plan.Excluded[0].Name != "CUDA_VISIBLE_DEVICES" ||
		plan.Excluded[1].Name != "RAY_ADDRESS" {
		t.Errorf("excludes %v", plan.Excluded)
	}
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0],
		"CUDA_VISIBLE_DEVICES is allowed by --ray-env-allow but not sent: it chooses devices") {
		t.Errorf("warns %q", plan.Warnings)
	}
}

func TestEnvironmentOddEntries(t *testing.T) {
	plan := Environment([]string{"=C:=x", "NOVALUE", "", "A=1", "A=2"}, EnvOptions{})
	if want := map[string]string{"A": "1"}; !reflect.DeepEqual(plan.Send, want) {
		t.Errorf("sends %v, want %v", plan.Send, want)
	}
}

func TestEnvironmentExclusionFile(t *testing.T) {
	write := func(dir, text string) string {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "ray_non_carry_over_env_vars.json"), []byte(text),
			0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	home, xdg := t.TempDir(), t.TempDir()
	write(filepath.Join(home, ".config", "eagleray"), `["A"]`)
	write(filepath.Join(xdg, "eagleray"), `["B"]`)
	ours := write(t.TempDir(), `["LMCACHE_LOCAL_CPU", "PYTHONHASHSEED", "HF_TOKEN"]`)
	theirs := write(t.TempDir(), `["B", "C"]`)
	unreadable := t.TempDir()
	if err := os.Mkdir(filepath.Join(unreadable, "ray_non_carry_over_env_vars.json"),
		0o755); err != nil {
		t.Fatal(err)
	}
	large := write(t.TempDir(), "["+strings.Repeat(" ", 1<<20)+"]")
	for _, c := range []struct {
		name    string
		environ []string
		allow   []string
		want    []string // excluded
		warning string
	}{
		{name: "ours", environ: []string{"EAGLERAY_CONFIG_ROOT=" + ours},
			want: []string{"HF_TOKEN", "LMCACHE_LOCAL_CPU", "PYTHONHASHSEED"}},
		{name: "vLLM's", environ: []string{"VLLM_CONFIG_ROOT=" + theirs}, want: []string{"B", "C"}},
		{name: "both", environ: []string{"EAGLERAY_CONFIG_ROOT=" + ours,
			"VLLM_CONFIG_ROOT=" + theirs},
			want: []string{"B", "C", "HF_TOKEN", "LMCACHE_LOCAL_CPU", "PYTHONHASHSEED"}},
		{name: "home", environ: []string{"HOME=" + home}, want: []string{"A", "HOME"}},
		{name: "XDG", environ: []string{"HOME=" + home, "XDG_CONFIG_HOME=" + xdg},
			want: []string{"B", "HOME", "XDG_CONFIG_HOME"}},
		{name: "tilde", environ: []string{"HOME=" + home,
			"EAGLERAY_CONFIG_ROOT=~/.config/eagleray"}, want: []string{"A", "HOME"}},
		{name: "no file", environ: []string{"EAGLERAY_CONFIG_ROOT=" + t.TempDir()}},
		{name: "no home"},
		{name: "not JSON", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(), `["A"`)},
			warning: "is not a JSON array of names"},
		{name: "not an array", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(),
			`{"A": 1}`)}, warning: "is not a JSON array of names"},
		{name: "not names", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(),
			`["A", 1]`)}, warning: "is not a JSON array of names"},
		{name: "null", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(), `null`)},
			warning: "is not a JSON array of names: null"},
		{name: "empty file", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(), ``)},
			warning: "is not a JSON array of names"},
		{name: "empty array", environ: []string{"EAGLERAY_CONFIG_ROOT=" + write(t.TempDir(),
			`[]`)}},
		{name: "a folder", environ: []string{"EAGLERAY_CONFIG_ROOT=" + unreadable},
			warning: "is a directory"},
		{name: "large", environ: []string{"EAGLERAY_CONFIG_ROOT=" + large},
			warning: "more than 1048576 bytes"},
		{name: "one bad file leaves the other", environ: []string{"EAGLERAY_CONFIG_ROOT=" +
			unreadable, "VLLM_CONFIG_ROOT=" + theirs},
			want: []string{"B", "C"}, warning: "it excludes nothing"},
		{name: "wins against the allow list", environ: []string{"VLLM_CONFIG_ROOT=" + theirs},
			allow: []string{"C"}, want: []string{"B", "C"},
			warning: "C is allowed by --ray-env-allow but not sent: it is listed in " + theirs},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ := append([]string{"A=1", "B=1", "C=1", "HF_TOKEN=1", "LMCACHE_LOCAL_CPU=1",
				"PYTHONHASHSEED=1"}, c.environ...)
			plan := Environment(environ, EnvOptions{Allow: c.allow})
			var got []string
			for _, x := range plan.Excluded {
				got = append(got, x.Name)
				if _, both := plan.Send[x.Name]; both {
					t.Errorf("%s is excluded and sent", x.Name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("excludes %v, want %v", got, c.want)
			}
			if warnings := strings.Join(plan.Warnings, "; "); !strings.Contains(warnings,
				c.warning) || (c.warning == "") != (warnings == "") {
				t.Errorf("warns %q, want %q", warnings, c.warning)
			}
		})
	}
}

// TestEnvironmentOfBuckets sends keys of a store where the model is in one.
func TestEnvironmentOfBuckets(t *testing.T) {
	keys := []string{"AWS_ACCESS_KEY_ID=AKIA", "AWS_SECRET_ACCESS_KEY=s", "AWS_REGION=r",
		"AWS_SHARED_CREDENTIALS_FILE=/home/me/.aws/credentials"}
	for model, want := range map[string][]string{"org/name": {"AWS_REGION"},
		"s3://b/m": {"AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"}} {
		sent := Environment(keys, EnvOptions{Model: model}).Send
		if got := slices.Sorted(maps.Keys(sent)); !slices.Equal(got, want) {
			t.Errorf("with the model %s: %q is sent, want %q", model, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	plan := Environment([]string{"A=valueA", "B=valueB", "HF_TOKEN=valueT", "OPENAI_API_KEY=valueK",
		"DB_PASS=valueP", "HOME=/valueH", "PATH=/valueX",
		"USER=valueU", "odd\nname=valueO"}, EnvOptions{})
	perNode := []NodeEnv{{Node: "10.0.0.3", Differs: []string{"B"}}, {Node: "10.0.0.2"},
		{Node: "10.0.0.3", Differs: []string{"B", "A"}}}
	got := Report(perNode, plan)
	want := `4 variables of the driver sent to 2 nodes, each set where the node has none of that name
withheld, as they look secret (--ray-env-allow NAME sends one): DB_PASS, OPENAI_API_KEY
not sent, belongs to the driver's session: HOME, USER
not sent, names files of the driver's machine: PATH
node 10.0.0.3 keeps its own value, which differs: A, B`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	// the word of the last line
	if strings.Contains(got, "value") && strings.Count(got, "value") != 1 {
		t.Errorf("the report shows a value:\n%s", got)
	}
	odd := Report([]NodeEnv{{Node: "n", Differs: []string{"odd\nname"}}}, plan)
	if !strings.Contains(odd, `differs: "odd\nname"`) {
		t.Errorf("a name breaks the line:\n%s", odd)
	}
	if want := "0 variables of the driver sent to 0 nodes, each set where the node has none of " +
		"that name"; Report(nil, EnvPlan{}) != want {
		t.Errorf("got %q", Report(nil, EnvPlan{}))
	}
}

func TestStrictError(t *testing.T) {
	if err := StrictError([]NodeEnv{{Node: "a"}, {Node: "b"}}); err != nil {
		t.Errorf("got %v", err)
	}
	wantError(t, StrictError([]NodeEnv{{Node: "b", Differs: []string{"Y", "X"}}, {Node: "c"},
		{Node: "a", Differs: []string{"Z"}}, {Node: "b", Differs: []string{"X"}}}),
		"--strict-env: …: node a: Z; node b: X, Y")
}

func TestParseRuntimeEnv(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "@" + path
	}
	for _, c := range []struct {
		name, in, want, err string
	}{
		{name: "blank", in: " \n"},
		{name: "empty object", in: "{}"},
		{name: "empty YAML", in: "# nothing\n", err: "must be an object, not null"},
		{name: "JSON", in: `{"pip": ["a<1 & b"], "env_vars": {"X": "1"}}`,
			want: `{"env_vars":{"X":"1"},"pip":["a<1 & b"]}`},
		{name: "JSON numbers as spelled",
			in:   `{"config": {"setup_timeout_seconds": 12345678901234567890, "x": 1.50}}`,
			want: `{"config":{"setup_timeout_seconds":12345678901234567890,"x":1.50}}`},
		{name: "YAML", in: "env_vars:\n  X: '1'\npip:\n- a\nworking_dir: .\n",
			want: `{"env_vars":{"X":"1"},"pip":["a"],"working_dir":"."}`},
		{name: "YAML in a line", in: `{pip: [a], env_vars: {X: "1"}}`,
			want: `{"env_vars":{"X":"1"},"pip":["a"]}`},
		{name: "YAML values", in: "a: 1\nb: 1.5\nc: true\nd: null\ne: 2020-01-02\n",
			want: `{"a":1,"b":1.5,"c":true,"d":null,"e":"2020-01-02"}`},
		{name: "dates stay text", in: "env_vars: {DAY: 2020-01-02, AT: 2020-01-02T03:04:05Z}",
			want: `{"env_vars":{"AT":"2020-01-02T03:04:05Z","DAY":"2020-01-02"}}`},
		{name: "anchors", in: "x: &x {a: 1}\ny: *x\nz: {<<: *x, b: 2}\n",
			want: `{"x":{"a":1},"y":{"a":1},"z":{"a":1,"b":2}}`},
		{name: "no env_vars", in: `{"env_vars": null, "pip": ["a"]}`,
			want: `{"env_vars":null,"pip":["a"]}`},
		{name: "JSON file", in: file("a.json", `{"pip": ["a"]}`), want: `{"pip":["a"]}`},
		{name: "YAML file", in: file("a.yaml", "pip: [a]\n"), want: `{"pip":["a"]}`},
		{name: "empty file", in: file("empty", "")},
		{name: "no file", in: "@" + filepath.Join(dir, "none"),
			err: "--ray-runtime-env: open …none: no such file"},
		{name: "file of another file", in: file("b", "@b"), err: "--ray-runtime-env: "},
		{name: "large file", in: file("large", strings.Repeat(" ", 1<<20+1)),
			err: "more than 1048576 bytes"},
		{name: "list", in: "[1]", err: "--ray-runtime-env: must be an object, not a list"},
		{name: "number", in: "1", err: "must be an object, not a number"},
		{name: "null", in: "null", err: "must be an object, not null"},
		{name: "path without @", in: "conf/env.yaml",
			err: "must be an object, not a string; a file is given as @file"},
		{name: "broken JSON", in: `{"pip": ["a"`, err: "--ray-runtime-env: yaml: "},
		{name: "broken YAML", in: "a: b: c", err: "--ray-runtime-env: yaml: "},
		{name: "two documents", in: "a: 1\n---\nb: 2\n", err: "must be one YAML document"},
		{name: "key twice", in: "a: 1\na: 2\n", err: "already defined"},
		{name: "key that is a number", in: "env_vars: {1: a}",
			err: "env_vars: the key 1 must be a string"},
		{name: "not a number", in: "a: .nan", err: "--ray-runtime-env: "},
		{name: "binary", in: "a: !!binary /w==", err: "a: binary data"},
		{name: "not UTF-8", in: "{\"a\": \"\xff\"}", err: "not UTF-8"},
		{name: "variable that is a number", in: "env_vars: {NCCL_DEBUG: 1}",
			err: "env_vars: the value of NCCL_DEBUG must be a string, not a number"},
		{name: "variable that is a boolean", in: `{"env_vars": {"A": "x", "B": true}}`,
			err: "the value of B must be a string, not a boolean"},
		{name: "variables in a list", in: `{"env_vars": ["A=1"]}`,
			err: "env_vars must be an object, not a list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseRuntimeEnv(c.in)
			wantError(t, err, c.err)
			if string(got) != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	if _, err := ParseRuntimeEnv("@" + filepath.Join(dir, "none")); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Whatever is accepted is an object that reads the same again, in a form the bridge can carry.
func FuzzParseRuntimeEnv(f *testing.F) {
	for _, s := range []string{"", "{}", `{"a": [1, 2.5, "x", null, true]}`, "a: 1\nb:\n- c\n",
		"env_vars: {A: b}", "env_vars: {A: 1}", "x: &x [1]\ny: *x",
		"a: &a [*a]", "{1: 2}", "? [a]\n: b", "a: 2020-01-01", "a: .inf", "--- 1\n--- 2",
		"a: !!binary /w==", "\"", "{\"a\":\"\\ud800\"}",
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: " +
			"[*b,*b,*b,*b,*b,*b,*b,*b,*b]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.HasPrefix(strings.TrimSpace(s), "@") {
			t.Skip("names a file")
		}
		env, err := ParseRuntimeEnv(s)
		if err != nil {
			if env != nil || !strings.HasPrefix(err.Error(), "--ray-runtime-env: ") {
				t.Fatalf("%q: %s, %v", s, env, err)
			}
			return
		}
		if env == nil {
			return
		}
		var object map[string]any
		if err := json.Unmarshal(env, &object); err != nil || len(object) == 0 {
			t.Fatalf("%q gave %s: %v", s, env, err)
		}
		again, err := ParseRuntimeEnv(string(env))
		if err != nil || string(again) != string(env) {
			t.Fatalf("%q gave %s, read again %s, %v", s, env, again, err)
		}
		if nsight := WithNsight(env); !json.Valid(nsight) {
			t.Fatalf("%q with nsight is %s", s, nsight)
		}
	})
}

func TestWithNsight(t *testing.T) {
	const block = `"nsight":{"t":"cuda,cudnn,cublas","o":"'worker_process_%p'","cuda-graph-trace":"node"}`
	for _, c := range []struct{ name, in, want string }{
		{"none", "", "{" + block + "}"},
		{"empty", "{}", "{" + block + "}"},
		{"others stay", `{"pip":["a<b"],"env_vars":{"X":"1"}}`,
			`{"env_vars":{"X":"1"},` + block + `,"pip":["a<b"]}`},
		{"the user's stays", `{"nsight":"default"}`, `{"nsight":"default"}`},
		{"the user's null stays", `{"nsight":null}`, `{"nsight":null}`},
	} {
		if got := WithNsight(json.RawMessage(c.in)); string(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestSplitRuntimeEnv(t *testing.T) {
	for _, c := range []struct {
		env, job, actor string
		setup           time.Duration
	}{
		{"", "", "", 0},
		{`{"env_vars":{"A":"1"}}`, `{"env_vars":{"A":"1"}}`, "", 600 * time.Second},
		{`{"nsight":"default"}`, "", `{"nsight":"default"}`, 600 * time.Second},
		{`{"config":{"setup_timeout_seconds":30},"nsight":{"t":"cuda"},"pip":["x"]}`,
			`{"config":{"setup_timeout_seconds":30},"pip":["x"]}`,
			`{"nsight":{"t":"cuda"}}`, 30 * time.Second},
	} {
		got, err := splitRuntimeEnv(json.RawMessage(c.env))
		if err != nil || strings.TrimSpace(string(got.job)) != c.job ||
			strings.TrimSpace(string(got.actor)) != c.actor || got.setup != c.setup {
			t.Errorf("%s: job %s, actor %s, setup %v, %v", c.env, got.job, got.actor, got.setup,
				err)
		}
	}
}
