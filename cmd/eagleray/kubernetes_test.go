package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// manifest is what these tests look at of Kubernetes' and KubeRay's kinds.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Replicas    int
		ServiceName string `yaml:"serviceName"`
		Ordinals    struct{ Start int }
		Template    podTemplate
		// Of services, unless it is that of a StatefulSet.
		Selector any
		Ports    []struct {
			TargetPort any `yaml:"targetPort"`
		}
		PodMetricsEndpoints []struct{ Port, Path string } `yaml:"podMetricsEndpoints"`

		Entrypoint       string
		ServeConfigV2    string      `yaml:"serveConfigV2"`
		RayClusterSpec   *rayCluster `yaml:"rayClusterSpec"`
		RayClusterConfig *rayCluster `yaml:"rayClusterConfig"`
		rayCluster       `yaml:",inline"`
	}
}

type podTemplate struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
		InitContainers                []container `yaml:"initContainers"`
		Containers                    []container
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	StartupProbe, LivenessProbe, ReadinessProbe probe
	Lifecycle                                   struct {
		PreStop struct {
			Sleep struct{ Seconds int }
			Exec  struct{ Command []string }
		} `yaml:"preStop"`
	}
	Resources    struct{ Limits map[string]string }
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// UnmarshalYAML reads the names that the package would look for in small letters.
func (c *container) UnmarshalYAML(n *yaml.Node) error {
	type plain container
	var probes struct {
		StartupProbe   probe `yaml:"startupProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
	}
	if err := errors.Join(n.Decode((*plain)(c)), n.Decode(&probes)); err != nil {
		return err
	}
	c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = probes.StartupProbe, probes.LivenessProbe,
		probes.ReadinessProbe
	return nil
}

type rayCluster struct {
	RayVersion       string     `yaml:"rayVersion"`
	HeadGroupSpec    rayGroup   `yaml:"headGroupSpec"`
	WorkerGroupSpecs []rayGroup `yaml:"workerGroupSpecs"`
}

type rayGroup struct {
	Replicas       int
	RayStartParams map[string]string `yaml:"rayStartParams"`
	Template       podTemplate
}

func manifests(t *testing.T, name string) []manifest {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []manifest
	for documents := yaml.NewDecoder(file); ; {
		var m manifest
		switch err := documents.Decode(&m); {
		case err == io.EOF:
			return all
		case err != nil:
			t.Fatal(name, err)
		}
		all = append(all, m)
	}
}

// one is the manifest of a kind and a name.
func one(t *testing.T, all []manifest, kind, name string) *manifest {
	t.Helper()
	i := slices.IndexFunc(all, func(m manifest) bool {
		return m.Kind == kind &&
			m.Metadata.Name == name
	})
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return &all[i]
}

// chartPod is a container of the chart's pods made to run here: as its command line is, but for
// files, addresses and sizes.
func chartPod(t *testing.T, all []manifest, set, port, masterPort, secret string) *program {
	t.Helper()
	config := filepath.Join(t.TempDir(), "serve.yaml")
	text := one(t, all, "ConfigMap", "eagleray").Data["serve.yaml"]
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := one(t, all, "StatefulSet", set)
	replace := map[string]string{
		"--config=/etc/eagleray/serve.yaml": "--config=" + config,
		"--host=0.0.0.0":                    "--host=127.0.0.1",
		"--port=8000":                       "--port=" + port,
		"--cluster-token-file=/run/secrets/eagleray/cluster-token": "--cluster-token-file=" +
			secret, "--master-addr=eagleray-0." +
			m.Spec.ServiceName: "--master-addr=127.0.0.1", "Qwen/Qwen3-0.6B": "",
	}
	fields := map[string]string{"status.podIP": "127.0.0.1",
		"metadata.labels['apps.kubernetes.io/pod-index']": strconv.Itoa(m.Spec.Ordinals.Start)}
	c := m.Spec.Template.Spec.Containers[0]
	var args []string
	for _, arg := range c.Args {
		for _, e := range c.Env {
			if value, ok := fields[e.ValueFrom.FieldRef.FieldPath]; ok {
				arg = strings.ReplaceAll(arg, "$("+e.Name+")", value)
			}
		}
		if other, ok := replace[arg]; ok {
			arg = other
		}
		if strings.Contains(arg, "$(") {
			t.Errorf("nothing says what %s is", arg)
		}
		if arg != "" {
			args = append(args, arg)
		}
	}
	args = append(args, "--kv-cache-memory-bytes=64M", "--cpu-threads=1")
	if masterPort != "" {
		args = append(args, "--master-port="+masterPort)
	}
	p := command(t, "", args...)
	p.shown = true
	return p
}

// get is the status of a route, 0 without an answer.
func get(url, key string) int {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return -1
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	client := http.Client{Timeout: patience}
	resp, err := client.Do(r)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestChartPod runs the chart's container: its probes say what they are for while it starts, serves
// and drains, its metrics are where its PodMonitor looks with the key, and what has time to finish
// does so within the pod's time.
func TestChartPod(t *testing.T) {
	t.Parallel()
	all := manifests(t, "helm/rendered/one.yaml")
	pod := one(t, all, "StatefulSet", "eagleray").Spec.Template.Spec
	c := pod.Containers[0]
	port := freePort(t)
	url := "http://127.0.0.1:" + port
	live, readiness := url+c.LivenessProbe.HTTPGet.Path, url+c.ReadinessProbe.HTTPGet.Path
	for _, p := range []probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p.HTTPGet.Port != c.Ports[0].Name || c.Ports[0].ContainerPort != 8000 {
			t.Errorf("probe %+v of ports %+v", p, c.Ports)
		}
	}
	p := chartPod(t, all, "eagleray", port, "", "")
	const key = "a key"
	p.cmd.Env = append(p.cmd.Env, "VLLM_API_KEY="+key)
	p.start()
	eventually(t, "the startup probe", func() bool {
		return get(url+c.StartupProbe.HTTPGet.Path,
			"") == 200
	})
	eventually(t, "the readiness probe", func() bool { return get(readiness, "") == 200 })
	if get(live, "") != 200 || get(url+"/metrics", "") != 401 || get(url+"/metrics", key) != 200 {
		t.Errorf("liveness %d, metrics %d without a key, %d with it", get(live, ""),
			get(url+"/metrics", ""), get(url+"/metrics", key))
	}
	sleep := c.Lifecycle.PreStop.Sleep.Seconds
	drain := 0
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--shutdown-timeout="); ok {
			drain, _ = strconv.Atoi(value)
		}
	}
	if sleep < 1 || drain < 1 || pod.TerminationGracePeriodSeconds < sleep+drain+5 {
		t.Errorf("%d s to leave and %d s to drain within %d s", sleep, drain,
			pod.TerminationGracePeriodSeconds)
	}
	r, err := http.NewRequest(http.MethodPost, url+"/v1/completions", strings.NewReader(
		`{"prompt":"package main","max_tokens":400,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "the drain", func() bool {
		return strings.Contains(p.err.String(),
			"shutting down")
	})
	// The pod gets no more requests; and it is not killed for that.
	if code := get(readiness, ""); code == 200 {
		t.Errorf("readiness is %d while draining", code)
	}
	if code := get(live, ""); code != 200 && code != 0 { // 0: the last request is done already
		t.Errorf("liveness is %d while draining", code)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q: %v", rest[max(0, len(rest)-300):], err)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestChartNodes runs the chart's two kinds of pods: they find each other by the names and numbers
// that they get, and end together.
func TestChartNodes(t *testing.T) {
	t.Parallel()
	all := manifests(t, "helm/rendered/nodes.yaml")
	secret := tokenFile(t)
	api, nodes := one(t, all, "StatefulSet", "eagleray"), one(t, all, "StatefulSet",
		"eagleray-node")
	if api.Spec.Replicas != 1 || nodes.Spec.Replicas != 1 || nodes.Spec.Ordinals.Start != 1 ||
		one(t, all, "Service", api.Spec.ServiceName) == nil {
		t.Errorf("replicas %d and %d, numbers from %d", api.Spec.Replicas, nodes.Spec.Replicas,
			nodes.Spec.Ordinals.Start)
	}
	if wait := nodes.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds; wait <
		api.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds+20 {
		t.Errorf("the other node waits %d s for the one with the API", wait)
	}
	port, masterPort := freePort(t), freePort(t)
	node := chartPod(t, all, "eagleray-node", "", masterPort, secret).start()
	zero := chartPod(t, all, "eagleray", port, masterPort, secret).start()
	readiness := api.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path
	eventually(t, "the readiness probe", func() bool {
		select {
		case <-zero.done:
			t.Fatalf("the server ended: %s", zero.err.String())
		case <-node.done:
			t.Fatalf("the node ended: %s", node.err.String())
		default:
		}
		return get("http://127.0.0.1:"+port+readiness, "") == 200
	})
	zero.stops()
	node.ends(0, "")
}

// TestKubeRay holds the manifests to themselves, to each other and to the flags: what is copied is
// where it is looked for, ranks fit the pods, services find the servers.
func TestKubeRay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rayservice", "raycluster", "rayjob"} {
		all := manifests(t, "kuberay/"+name+".yaml")
		m := all[0]
		cluster := &m.Spec.rayCluster
		for _, other := range []*rayCluster{m.Spec.RayClusterSpec, m.Spec.RayClusterConfig} {
			if other != nil {
				cluster = other
			}
		}
		head, workers := cluster.HeadGroupSpec, cluster.WorkerGroupSpecs[0]
		if m.APIVersion != "ray.io/v1" || head.RayStartParams["num-cpus"] != "0" {
			t.Errorf("%s: %s, head %v", name, m.APIVersion, head.RayStartParams)
		}
		place := ""
		for _, group := range []rayGroup{head, workers} {
			spec := group.Template.Spec
			place = copied(t, spec.InitContainers[0], spec.Containers[0])
			if image := spec.Containers[0].Image; !strings.Contains(image,
				":"+cluster.RayVersion+"-") {
				t.Errorf("%s: image %s with Ray %s", name, image, cluster.RayVersion)
			}
		}
		cpus := workers.Template.Spec.Containers[0].Resources.Limits["cpu"]
		for _, m := range all {
			if m.Kind != "RayJob" {
				continue
			}
			line, ok := strings.CutPrefix(m.Spec.Entrypoint, "exec "+place+"/eagleray ")
			verb, line, _ := strings.Cut(line, " ")
			if !ok || verb != "serve" && verb != "run-batch" {
				t.Fatalf("%s: entry point %q", name, m.Spec.Entrypoint)
			}
			if verb == "run-batch" {
				line, _, _ = strings.Cut(line, " -i ")
			}
			p := parseServe(t, line)
			if workers.Replicas != p.Parallel.TensorParallelSize || p.Parallel.Backend != "ray" ||
				cpus != strconv.Itoa(p.Parallel.CPUThreads) {
				t.Errorf("%s: %d ranks of %d CPUs on %d pods of %s", name,
					p.Parallel.TensorParallelSize, p.Parallel.CPUThreads, workers.Replicas, cpus)
			}
			if verb == "serve" {
				served(t, all, &head, p.Server.Port, p.Server.Host, p.Server.ShutdownTimeoutSeconds)
			}
		}
		if m.Kind == "RayService" {
			serveConfig(t, m.Spec.ServeConfigV2, cpus)
		}
	}
}

// copied checks what the init container leaves against where the other one looks, and says where.
func copied(t *testing.T, from, to container) string {
	t.Helper()
	place := to.VolumeMounts[0].MountPath
	if len(from.Args) != 2 || from.Args[0] != "copy" || from.Args[1] != place ||
		from.VolumeMounts[0].MountPath != place ||
		from.VolumeMounts[0].Name != to.VolumeMounts[0].Name {
		t.Errorf("%q into %+v, used at %s", from.Args, from.VolumeMounts, place)
	}
	env := map[string]string{}
	for _, e := range to.Env {
		env[e.Name] = e.Value
	}
	if env["EAGLERAY_BINARY"] != place+"/eagleray" || env["PYTHONPATH"] != place+"/python" {
		t.Errorf("environment %v, with what is at %s", env, place)
	}
	return place
}

// served checks the service before a job that serves.
func served(t *testing.T, all []manifest, head *rayGroup, port int, host string, drain int) {
	t.Helper()
	service := one(t, all, "Service", "eagleray")
	pod := head.Template.Spec
	ports := pod.Containers[0].Ports
	if last := ports[len(ports)-1].ContainerPort; last != port ||
		service.Spec.Ports[0].TargetPort != port || host != "0.0.0.0" {
		t.Errorf("port %d of the pod, %+v of the service, %s:%d of the server", last,
			service.Spec.Ports, host, port)
	}
	selector, _ := service.Spec.Selector.(map[string]any)
	for name, want := range selector {
		if got := head.Template.Metadata.Labels[name]; got != want && name != "ray.io/node-type" {
			t.Errorf("the service looks for %s=%s, the head has %q", name, want, got)
		}
	}
	if len(selector) == 0 || pod.TerminationGracePeriodSeconds < drain+10 {
		t.Errorf("selector %v; %d s to drain within %d s", selector, drain,
			pod.TerminationGracePeriodSeconds)
	}
}

// serveConfig checks what Ray Serve is given.
func serveConfig(t *testing.T, text, cpus string) {
	t.Helper()
	var config struct {
		Applications []struct {
			ImportPath string `yaml:"import_path"`
			Args       struct {
				LLMConfigs []struct {
					EngineKwargs     map[string]any `yaml:"engine_kwargs"`
					DeploymentConfig struct {
						RayActorOptions struct {
							NumCPUs int `yaml:"num_cpus"`
						} `yaml:"ray_actor_options"`
					} `yaml:"deployment_config"`
				} `yaml:"llm_configs"`
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Applications) != 1 ||
		config.Applications[0].ImportPath != "eagleray.serve:build_openai_app" ||
		len(config.Applications[0].Args.LLMConfigs) == 0 {
		t.Fatalf("%+v", config)
	}
	for _, model := range config.Applications[0].Args.LLMConfigs {
		var line strings.Builder
		for flag, value := range model.EngineKwargs {
			fmt.Fprintf(&line, " --%s %v", strings.ReplaceAll(flag, "_", "-"), value)
		}
		p := parseServe(t, line.String())
		if n := model.DeploymentConfig.RayActorOptions.NumCPUs; n != p.Parallel.CPUThreads ||
			strconv.Itoa(n) != cpus {
			t.Errorf("a replica of %d CPUs computes on %d, on pods of %s", n, p.Parallel.CPUThreads,
				cpus)
		}
	}
}

// TestKubeRayDrain runs what the pods of the job do before they are stopped: the head's ends the
// server when its requests are done, the others' only waits for that.
func TestKubeRayDrain(t *testing.T) {
	t.Parallel()
	cluster := manifests(t, "kuberay/rayjob.yaml")[0].Spec.RayClusterSpec
	// A program of its own place, as in the pod: those of other tests are none of the hook's.
	place := t.TempDir()
	if err := copyTo(place, os.Args[0]); err != nil {
		t.Fatal(err)
	}
	p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M", "--cpu-threads",
		"1")
	p.cmd.Path = filepath.Join(place, "eagleray")
	p, url := ready(t, p)
	events := longStream(t, url, 400)
	hook := func(group *rayGroup) chan error {
		argv := slices.Clone(group.Template.Spec.Containers[0].Lifecycle.PreStop.Exec.Command)
		if len(argv) != 3 {
			t.Fatalf("hook %q", argv)
		}
		argv[2] = strings.ReplaceAll(argv[2], "/opt/eagleray", place)
		c := exec.Command(argv[0], argv[1:]...)
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		done := make(chan error, 1)
		go func() {
			out, err := c.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			done <- err
		}()
		return done
	}
	waits := hook(&cluster.WorkerGroupSpecs[0])
	ends := hook(&cluster.HeadGroupSpec)
	rest, err := io.ReadAll(events)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q: %v", rest[max(0, len(rest)-300):], err)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, done := range []chan error{ends, waits} {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("a hook goes on when the server has ended")
		}
	}
	// Where there is no server there is nothing to wait for.
	if err := <-hook(&cluster.HeadGroupSpec); err != nil {
		t.Error(err)
	}
}
