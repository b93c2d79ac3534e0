package packaging_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// patience is how long a step of a pod may take on a machine that is busy.
const patience = time.Minute

// containerRuntime is what a container's runtime does, for the arguments ROOT MOUNT=FOLDER... --
// COMMAND: it mounts what every container has, and volumes, makes the rest read-only, gives up all
// privileges, and becomes the program, as the first process.
const containerRuntime = `
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=64m,mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=755 dev "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs -o size=64m,mode=1777 shm "$root/dev/shm"
for d in null zero random urandom; do : >"$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
while [ "$1" != -- ]; do mount --bind "${1#*=}" "$root${1%%=*}"; shift; done
shift
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs chroot --userspec=65534:65534 --groups= "$root" "$@"`

// chartArguments are those of the chart's container, and the path of its file of flags.
func chartArguments(t *testing.T) (args []string, config string) {
	t.Helper()
	raw, err := os.ReadFile("../deploy/helm/rendered/one.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for all := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var m struct {
			Kind string
			Data map[string]string
			Spec struct {
				Template struct {
					Spec struct{ Containers []struct{ Args []string } }
				}
			}
		}
		switch err := all.Decode(&m); {
		case err == io.EOF:
			if config == "" || len(args) == 0 {
				t.Fatalf("config %q, arguments %q", config, args)
			}
			return args, config
		case err != nil:
			t.Fatal(err)
		case m.Kind == "ConfigMap":
			config = m.Data["serve.yaml"]
		case m.Kind == "StatefulSet":
			args = m.Spec.Template.Spec.Containers[0].Args
		}
	}
}

// pod prepares a container of an image's files, as user 65534 with no privileges, on a root that is
// read-only, with volumes: MOUNT=FOLDER.
func pod(t *testing.T, root string, volumes, command []string) *exec.Cmd {
	t.Helper()
	if out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "setpriv",
		"--no-new-privs", "true").CombinedOutput(); err != nil {
		t.Skipf("no pod: no namespaces for this user, or no util-linux: %v %s", err, out)
	}
	dirs := []string{"proc", "tmp", "dev"}
	for _, v := range volumes {
		mount, folder, _ := strings.Cut(v, "=")
		dirs = append(dirs, mount)
		if err := os.Chown(folder, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", containerRuntime,
		"sh", root}
	args = append(append(append(args, volumes...), "--"), command...)
	c := exec.CommandContext(t.Context(), "unshare", args...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HF_HOME=/models/huggingface"}
	return c
}

// served has an image answer over HTTP as the chart runs it, with a volume for models.
func served(t *testing.T, root string) {
	t.Helper()
	args, config := chartArguments(t)
	for i, arg := range args {
		switch arg {
		case "--host=0.0.0.0":
			args[i] = "--host=127.0.0.1"
		case "--port=8000":
			args[i] = "--port=0"
		}
	}
	flags := t.TempDir()
	if err := os.WriteFile(filepath.Join(flags, "serve.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"/usr/bin/eagleray"}, append(args, "--tensor-parallel-size=2",
		"--kv-cache-memory-bytes=64M", "--cpu-threads=1")...)
	pod := pod(t, root, []string{"/models=" + t.TempDir(), "/etc/eagleray=" + flags}, args)
	const key = "a key"
	pod.Env = append(pod.Env, "VLLM_API_KEY="+key)
	printed, err := pod.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	pod.WaitDelay = patience
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(printed); s.Scan(); {
			lines <- s.Text()
		}
	}()
	said := func(want *regexp.Regexp) string {
		t.Helper()
		var log []string
		for deadline := time.After(patience); ; {
			select {
			case line, more := <-lines:
				if found := want.FindStringSubmatch(line); found != nil {
					return found[len(found)-1]
				}
				if log = append(log, line); !more {
					t.Fatalf("the pod ended without %s: %q", want, log)
				}
			case <-deadline:
				t.Fatalf("the pod does not say %s: %q", want, log)
			}
		}
	}
	url := said(regexp.MustCompile(`url=(http://127\.0\.0\.1:\d+)`))
	ask := func(method, path, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Authorization", "Bearer "+key)
			r.Header.Set("Content-Type", "application/json")
		}
		answer, err := (&http.Client{Timeout: patience}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if code := ask("GET", path, "").StatusCode; code != 200 {
			t.Errorf("%s of the pod: %d", path, code)
		}
	}
	chat, err := io.ReadAll(ask("POST", "/v1/chat/completions",
		`{"messages":[{"role":"user","content":"What does os.Open do?"}],"temperature":0}`).Body)
	if err != nil || !strings.Contains(string(chat), "Open opens the named file for reading.") {
		t.Errorf("the pod answers %s: %v", chat, err)
	}
	stream := ask("POST", "/v1/completions",
		`{"prompt":"package main","max_tokens":1000,"ignore_eos":true,"stream":true}`).Body
	if _, err := io.ReadFull(stream, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	status, first := processOf(t, pod.Process.Pid)
	for _, want := range []string{"\nUid:\t65534\t65534\t65534\t65534\n",
		"\nGid:\t65534\t65534\t65534\t65534\n", "\nCapEff:\t0000000000000000\n",
		"\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the pod's program lacks %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", first))
	if err != nil || !regexp.MustCompile(`(?m)^\S+ / \S+ ro,`).Match(mounts) {
		t.Errorf("the root can be written: %v\n%s", err, mounts)
	}
	// SIGTERM follows the hook that leaves time to be taken out of the service.
	if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said(regexp.MustCompile("shutting down"))
	rest, err := io.ReadAll(stream)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q: %v", rest[max(0, len(rest)-300):], err)
	}
	for range lines { // Wait closes what they are read from
	}
	if err := pod.Wait(); err != nil {
		t.Errorf("the pod ends with %v", err)
	}
}

// processOf is what /proc says of the first process that parent has started, and its id.
func processOf(t *testing.T, parent int) (status string, pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), fmt.Sprintf("\nPPid:\t%d\n", parent)) {
			if pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
				t.Fatal(err)
			}
			return string(raw), pid
		}
	}
	t.Fatalf("process %d has no children", parent)
	return "", 0
}
