package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Known is a flag of vLLM that does nothing here. Command lines written for vLLM go on working
// where that is honest: a value that asks for what happens anyway is accepted, with a warning; any
// other is refused.
type Known struct {
	Name string
	// Allowed are the values accepted; AnyValue in it accepts all. A switch is always accepted when
	// it is off.
	Allowed []string
	// Switch marks flags without a value.
	Switch bool
	// Words marks flags that take several words: vLLM's lists.
	Words bool
	// Why tells the user what happens instead.
	Why string
}

// AnyValue, in Known.Allowed, accepts every value.
const AnyValue = "*"

var (
	anything = []string{AnyValue}
	on       = []string{"true"}
	none     = []string{"none", "None", "null", ""}
)

// engineKnown are vLLM's engine flags that are accepted or refused by value.
var engineKnown = []Known{
	// Layouts of one.
	{Name: "decode-context-parallel-size", Allowed: []string{"1"},
		Why: "sequences are not divided among ranks"},
	{Name: "disable-custom-all-reduce", Allowed: on, Switch: true, Why: "there is one all-reduce"},
	{Name: "max-parallel-loading-workers", Allowed: anything,
		Why: "each rank reads only its own part of the weights"},
	{Name: "worker-extension-cls", Allowed: none,
		Why: "ranks run no Python; eagleray.weights brings them what a trainer has"},
	// Memory and devices.
	{Name: "swap-space", Allowed: anything, Why: "preempted requests are computed again"},
	{Name: "cpu-offload-gb", Allowed: []string{"0", "0.0"}, Why: "weights are in memory already"},
	{Name: "calculate-kv-scales", Switch: true,
		Why: "each token and head has a scale, where the checkpoint has none"},
	{Name: "disable-sliding-window", Switch: true, Why: "the model's windows are kept"},
	{Name: "disable-cascade-attn", Allowed: on, Switch: true, Why: "there is one attention kernel"},
	{Name: "prefix-caching-hash-algo", Allowed: anything, Why: "the hash is chosen here"},
	{Name: "kv-events-config", Allowed: none, Why: "cache events are not published"},
	// Execution.
	{Name: "compilation-config", Allowed: anything, Why: "nothing is compiled at start"},
	{Name: "max-seq-len-to-capture", Allowed: anything, Why: "there is no graph capture"},
	{Name: "attention-backend", Allowed: anything, Why: "there is one attention kernel"},
	{Name: "performance-mode", Allowed: anything, Why: "steps are as large as requests make them"},
	{Name: "max-num-partial-prefills", Allowed: []string{"1"},
		Why: "prompts are cut one after another"},
	{Name: "scheduler-cls", Allowed: none, Why: "there is no Python"},
	{Name: "logits-processors", Words: true, Allowed: none, Why: "there is no Python"},
	// The model.
	{Name: "trust-remote-code", Allowed: on, Switch: true,
		Why: "code in model folders is never run"},
	{Name: "model-impl", Allowed: []string{"auto", "vllm"}, Why: "there is one implementation"},
	{Name: "config-format", Allowed: []string{"auto", "hf"}, Why: "config.json is read"},
	{Name: "tokenizer-mode", Allowed: []string{"auto", "hf", "slow"},
		Why: "the folder's files decide"},
	{Name: "tokenizer-revision", Allowed: none,
		Why: "--revision is that of the model and its tokenizer"},
	{Name: "code-revision", Allowed: anything, Why: "code in model folders is never run"},
	{Name: "task", Allowed: []string{"auto", "generate"}, Why: "say --runner pooling"},
	{Name: "convert", Allowed: []string{"auto", "none"}, Why: "say --runner pooling"},
	{Name: "model-loader-extra-config", Allowed: []string{"{}", ""}, Why: "there is one loader"},
	{Name: "use-tqdm-on-load", Allowed: on, Switch: true,
		Why: "progress is shown after two seconds"},
	{Name: "language-model-only", Allowed: on, Switch: true, Why: "input is text"},
	{Name: "limit-mm-per-prompt", Allowed: anything, Why: "input is text"},
	{Name: "enable-prompt-embeds", Switch: true, Why: "prompts are text or token ids"},
	{Name: "guided-decoding-backend", Allowed: anything,
		Why: "there is one way to constrain answers"},
}

// serverKnown are vLLM's flags of the HTTP surface that are accepted or refused by value.
var serverKnown = []Known{
	{Name: "chat-template-content-format", Allowed: []string{"auto", "string"},
		Why: "templates get text"},
	{Name: "response-role", Allowed: []string{"assistant"}, Why: "answers are the assistant's"},
	{Name: "disable-log-requests", Allowed: on, Switch: true, Why: "prompts are never logged"},
	{Name: "max-log-len", Allowed: anything, Why: "prompts are never logged"},
	{Name: "uvicorn-log-level", Allowed: anything, Why: "see --disable-uvicorn-access-log"},
	{Name: "disable-frontend-multiprocessing", Allowed: on, Switch: true,
		Why: "HTTP is served by the driver process"},
	{Name: "api-server-count", Allowed: anything, Why: "HTTP is served by the driver process"},
	{Name: "enable-server-load-tracking", Allowed: on, Switch: true, Why: "/load always counts"},
	{Name: "h11-max-incomplete-event-size", Allowed: anything,
		Why: "headers have limits of their own"},
	{Name: "h11-max-header-count", Allowed: anything, Why: "headers have limits of their own"},
	{Name: "middleware", Words: true, Allowed: none, Why: "there is no Python"},
	{Name: "enable-ssl-refresh", Allowed: on, Switch: true,
		Why: "certificates are always read again when they change"},
	{Name: "ssl-ciphers", Allowed: none, Why: "the ciphers of TLS are chosen here"},
}

// DefineKnown adds the flags of a table, hidden from help. Each accepted one adds a line to
// warnings.
func DefineKnown(f *pflag.FlagSet, table []Known, warnings *[]string) {
	for _, k := range table {
		f.Var(&knownValue{k, warnings}, k.Name, k.Why)
		x := f.Lookup(k.Name)
		x.Hidden = true
		if k.Words {
			Words(f, k.Name)
		}
		if k.Switch {
			x.NoOptDefVal = "true"
		}
	}
}

// knownValue is the pflag.Value of a Known.
type knownValue struct {
	Known
	warnings *[]string
}

func (k *knownValue) String() string { return "" }

// Type implements pflag.Value.
func (k *knownValue) Type() string {
	if k.Switch {
		return "bool"
	}
	return "string"
}

// Set implements pflag.Value.
func (k *knownValue) Set(s string) error {
	asked := s
	if k.Switch {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is not true or false", s)
		}
		asked = strconv.FormatBool(v)
	}
	if asked == "false" && k.Switch || slices.Contains(k.Allowed, AnyValue) ||
		slices.Contains(k.Allowed, asked) {
		warning := fmt.Sprintf("--%s has no effect: %s", k.Name, k.Why)
		if !slices.Contains(*k.warnings, warning) {
			*k.warnings = append(*k.warnings, warning)
		}
		return nil
	}
	if k.Switch || len(k.Allowed) == 0 || slices.Contains(k.Allowed, "none") {
		return fmt.Errorf("vLLM's flag is known and not supported yet: %s", k.Why)
	}
	return fmt.Errorf("vLLM's flag is known, and values but %s are not supported yet: %s",
		strings.Join(k.Allowed, ", "), k.Why)
}
