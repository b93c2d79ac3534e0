package rayactor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/group/launch"
)

// EnvOptions are the user's wishes about the environment of workers.
type EnvOptions struct {
	// Allow (--ray-env-allow) are names to send though they look secret or belong to one node.
	Allow []string
	// Model is what the model is called, which says what workers need to get it.
	Model string
}

// EnvPlan is what becomes of the driver's environment on the nodes of the workers.
type EnvPlan struct {
	// Send are variables for workers, each to be set only where the node has none of that name.
	Send map[string]string
	// Withheld are the names that look secret, sorted.
	Withheld []string
	// Excluded are the names that are not sent for another reason, sorted.
	Excluded []Exclusion
	// Warnings are for the log.
	Warnings []string
}

// Exclusion is a variable that is not sent, and why.
type Exclusion struct {
	Name, Reason string
}

// envRule is a reason for not sending variables, and which: names and prefixes of names,
// separated by spaces.
type envRule struct {
	reason          string
	names, prefixes string
	// firm rules hold even for names the user allows: the value is wrong on every other node.
	firm bool
}

// The rules follow vLLM's RayExecutorV2: everything is sent but WORKER_SPECIFIC_ENV_VARS, since
// it cannot be known which variable some library reads; the list of what belongs to one rank or
// node is longer here. LD_LIBRARY_PATH and PATH name files of the driver's machine, and a wrong one
// loads the wrong library. Numbers of threads and memory limits are of the driver's machine and
// process; the worker gets its own with its configuration, and Ray has set OMP_NUM_THREADS=1 for
// every actor anyway, so a value set where absent would never count.
var envRules = []envRule{
	{reason: "belongs to one rank of some launcher", firm: true,
		names:    `LOCAL_RANK RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK ROLE_RANK MASTER_ADDR MASTER_PORT`,
		prefixes: `TORCHELASTIC_ OMPI_ PMI_ PMIX_ SLURM_`},
	{reason: "chooses devices, which Ray does", firm: true,
		names: `CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
			ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR TPU_VISIBLE_CHIPS ASCEND_RT_VISIBLE_DEVICES HABANA_VISIBLE_MODULES
			NEURON_RT_VISIBLE_CORES RBLN_DEVICES`},
	{reason: "is an address of the driver", firm: true,
		names: `VLLM_HOST_IP VLLM_HOST_PORT VLLM_PORT EAGLERAY_HOST_IP EAGLERAY_NODE_IP HOST HOSTNAME HOST_IP POD_IP POD_NAME POD_UID NODE_IP NODE_NAME`},
	{reason: "is the driver's way to Ray", firm: true,
		prefixes: `RAY_ EAGLERAY_RAY_ EAGLERAY_PG_ EAGLERAY_PARENT_`},
	{reason: "belongs to the driver's service manager", firm: true,
		names: `NOTIFY_SOCKET JOURNAL_STREAM INVOCATION_ID MAINPID SYSTEMD_EXEC_PID LISTEN_FDS LISTEN_PID LISTEN_FDNAMES
			WATCHDOG_PID WATCHDOG_USEC CREDENTIALS_DIRECTORY RUNTIME_DIRECTORY STATE_DIRECTORY CACHE_DIRECTORY
			LOGS_DIRECTORY CONFIGURATION_DIRECTORY MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE`},
	{reason: "belongs to the driver's session",
		names: `HOME USER LOGNAME USERNAME SHELL SHLVL _ PWD OLDPWD MAIL TERM COLORTERM LS_COLORS DISPLAY WAYLAND_DISPLAY XAUTHORITY
			DBUS_SESSION_BUS_ADDRESS DESKTOP_SESSION WINDOWID TMUX TMUX_PANE STY BASH_ENV`,
		prefixes: `SSH_ XDG_ SUDO_ TERM_ BASH_FUNC_`},
	{reason: "names files of the driver's machine",
		names:    `PATH TMPDIR TMP TEMP VIRTUAL_ENV VIRTUAL_ENV_PROMPT`,
		prefixes: `LD_ DYLD_ PYTHON CONDA_ PYENV_`},
	{reason: "fits the driver's cores and memory",
		names: `OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND GOMP_CPU_AFFINITY KMP_AFFINITY MKL_NUM_THREADS OPENBLAS_NUM_THREADS
			GOMAXPROCS GOMEMLIMIT`},
}

// envKeep are names that no rule but the user's own excludes. All ranks must agree on Python's
// hash seed.
const envKeep = "PYTHONHASHSEED"

// exclusionFile is the name vLLM gives the user's list of names not to send, a JSON array.
const exclusionFile = "ray_non_carry_over_env_vars.json"

// maxSettings bounds files the user may give.
const maxSettings = 1 << 20

// Environment decides what of environ, the driver's os.Environ(), workers are sent: everything
// except what belongs to one rank, node or session, what the user's exclusion file lists, and
// what looks secret and is not allowed. The file is ray_non_carry_over_env_vars.json in
// $EAGLERAY_CONFIG_ROOT (~/.config/eagleray) and in $VLLM_CONFIG_ROOT if that is set; what it
// lists is not sent even if it is allowed.
func Environment(environ []string, o EnvOptions) EnvPlan {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := env[name]; ok && name != "" && !twice {
			env[name] = value
		}
	}
	plan := EnvPlan{Send: map[string]string{}}
	unwanted := map[string]string{}
	for _, file := range exclusionFiles(env) {
		names, err := readExclusions(file)
		if err != nil {
			plan.Warnings = append(plan.Warnings,
				fmt.Sprintf("environment exclusions: %v; it excludes nothing", err))
		}
		for _, name := range names {
			unwanted[name] = "listed in " + file
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		allowed := slices.Contains(o.Allow, name)
		reason, firm := unwanted[name], true
		if reason == "" {
			reason, firm = ruledOut(name, env[name])
		}
		switch {
		case reason != "" && (firm || !allowed):
			plan.Excluded = append(plan.Excluded, Exclusion{Name: name, Reason: reason})
			if allowed {
				plan.Warnings = append(plan.Warnings,
					fmt.Sprintf("%s is allowed by --ray-env-allow but not sent: it %s", plain(name),
						orIs(reason)))
			}
		case !allowed && !slices.Contains(launch.ModelSecrets(o.Model), name) &&
			launch.LooksSecret(name, env[name]):
			plan.Withheld = append(plan.Withheld, name)
		default:
			plan.Send[name] = env[name]
		}
	}
	return plan
}

// orIs turns a reason into the end of a sentence about the variable.
func orIs(reason string) string {
	if strings.HasPrefix(reason, "listed") {
		return "is " + reason
	}
	return reason
}

// serviceLink are the variables Kubernetes and Docker make for each service the driver's
// container can see.
var serviceLink = regexp.MustCompile(
	`^KUBERNETES_|_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)

var linkValue = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// ruledOut is why a variable is not sent, "" if no rule says so.
func ruledOut(name, value string) (reason string, firm bool) {
	if name == envKeep {
		return "", false
	}
	if serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") &&
		linkValue.MatchString(value) {
		return "is a service link of the driver's container", false
	}
	for _, r := range envRules {
		if slices.Contains(strings.Fields(r.names), name) ||
			slices.ContainsFunc(strings.Fields(r.prefixes),
				func(p string) bool { return strings.HasPrefix(name, p) }) {
			return r.reason, r.firm
		}
	}
	return "", false
}

// exclusionFiles are where the user may have listed names.
func exclusionFiles(env map[string]string) []string {
	home := env["HOME"]
	root := env["EAGLERAY_CONFIG_ROOT"]
	if root == "" {
		config := env["XDG_CONFIG_HOME"]
		if config == "" && home != "" {
			config = filepath.Join(home, ".config")
		}
		if config != "" {
			root = filepath.Join(config, "eagleray")
		}
	}
	var files []string
	for _, r := range []string{root, env["VLLM_CONFIG_ROOT"]} {
		if rest, ok := strings.CutPrefix(r, "~/"); ok && home != "" {
			r = filepath.Join(home, rest)
		}
		if file := filepath.Join(r, exclusionFile); r != "" && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
}

// readExclusions reads a JSON array of names; a file that is not there lists none.
func readExclusions(file string) ([]string, error) {
	raw, err := readSettings(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(raw, &names); err != nil {
		return nil, fmt.Errorf("%s is not a JSON array of names: %w", file, err)
	}
	if names == nil {
		return nil, fmt.Errorf("%s is not a JSON array of names: null", file)
	}
	return names, nil
}

func readSettings(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxSettings {
		return nil, fmt.Errorf("%s has more than %d bytes", file, maxSettings)
	}
	return raw, nil
}

// NodeEnv are the variables to send that a node has already, with another value.
type NodeEnv struct {
	// Node is the node's address or name; a node may be given once for each of its ranks.
	Node    string
	Differs []string
}

// Report says in several lines what was sent to the nodes, what was not, and which nodes keep
// values of their own. It holds names, never a value.
func Report(perNode []NodeEnv, plan EnvPlan) string {
	nodes, differs := byNode(perNode)
	var b strings.Builder
	fmt.Fprintf(&b, "%s of the driver sent to %s, each set where the node has none of that name\n",
		count(len(plan.Send), "variable"), count(len(nodes), "node"))
	if len(plan.Withheld) > 0 {
		fmt.Fprintf(&b, "withheld, as they look secret (--ray-env-allow NAME sends one): %s\n",
			plainList(plan.Withheld))
	}
	var reasons []string
	excluded := map[string][]string{}
	for _, x := range plan.Excluded {
		if excluded[x.Reason] == nil {
			reasons = append(reasons, x.Reason)
		}
		excluded[x.Reason] = append(excluded[x.Reason], x.Name)
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		fmt.Fprintf(&b, "not sent, %s: %s\n", reason, plainList(excluded[reason]))
	}
	for _, node := range nodes {
		if len(differs[node]) > 0 {
			fmt.Fprintf(&b, "node %s keeps its own value, which differs: %s\n", node,
				plainList(differs[node]))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// StrictError is what --strict-env makes of nodes with values of their own: an error that names
// them and the variables, nil if there are none.
func StrictError(perNode []NodeEnv) error {
	nodes, differs := byNode(perNode)
	var parts []string
	for _, node := range nodes {
		if len(differs[node]) > 0 {
			parts = append(parts, fmt.Sprintf("node %s: %s", node, plainList(differs[node])))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return fmt.Errorf("--strict-env: values on nodes differ from the driver's: %s",
		strings.Join(parts, "; "))
}

// byNode joins what several ranks said of one node; both results are sorted.
func byNode(perNode []NodeEnv) (nodes []string, differs map[string][]string) {
	differs = map[string][]string{}
	for _, n := range perNode {
		differs[n.Node] = append(differs[n.Node], n.Differs...)
	}
	for node, names := range differs {
		slices.Sort(names)
		differs[node] = slices.Compact(names)
	}
	return slices.Sorted(maps.Keys(differs)), differs
}

func plainList(names []string) string {
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = plain(name)
	}
	return strings.Join(parts, ", ")
}

// plain quotes a name that could pass for more than a name in a log.
func plain(name string) string {
	odd := func(c rune) bool { return !isAlphanumeric(c) && c != '_' && c != '.' && c != '-' }
	if strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}
