package ray_test

import (
	"encoding/json"
	"fmt"
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
)

// job is a job that Ray runs.
type job struct {
	s  *site
	id string
}

// submit has Ray run the program: ray job submit, as people do.
func (s *site) submit(t *testing.T, verb string, args ...string) *job {
	t.Helper()
	return s.enter(t, verb, func(id string) []string {
		return append([]string{"exec", program(t), verb, "--ray-python", s.Ray.Python,
			"--distributed-executor-backend", "ray", "-tp", "2", "--ray-device-key", "GPU",
			"--kv-cache-memory-bytes", "64M", "--ray-namespace", id, "--node-ip", s.head()},
			args...)
	})
}

// dataJob has Ray run a case of testdata/data.py.
func (s *site) dataJob(t *testing.T, name, folder string) *job {
	t.Helper()
	cmd := s.datasetCommand(t, name, folder)
	return s.enter(t, "data", func(id string) []string {
		line := []string{"exec", "env", "EAGLERAY_TEST_MARK=" + id}
		return slices.Concat(line, cmd.Env[len(s.Env):], cmd.Args)
	})
}

// enter has Ray run a command line, which has the job's id in it: it marks the job's processes.
func (s *site) enter(t *testing.T, name string, command func(id string) []string) *job {
	t.Helper()
	j := &job{s: s, id: fmt.Sprintf("%s-%d", name, time.Now().UnixNano())}
	line := command(j.id)
	if out, err := j.ray(append([]string{"submit", "--no-wait", "--submission-id", j.id, "--"},
		line...)...); err != nil {
		t.Fatalf("%s\n%v", out, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the job:\n%s", j.log())
		}
		// Of a job that has ended it is refused.
		_, _ = j.ray("stop", j.id)
	})
	return j
}

// ray runs ray job VERB.
func (j *job) ray(verb ...string) (string, error) {
	cmd := exec.Command(filepath.Join(filepath.Dir(j.s.Ray.Python), "ray"),
		slices.Concat([]string{"job", verb[0], "--address", "http://" + j.s.Dashboard},
			verb[1:])...)
	cmd.Env = j.s.Env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// status is what Ray says of the job: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
func (j *job) status(t *testing.T) string {
	t.Helper()
	var answer struct{ Status string }
	j.get(t, "", &answer)
	return answer.Status
}

// succeeds waits for the end of the job.
func (j *job) succeeds(t *testing.T) {
	t.Helper()
	eventually(t, "the end of the job", func() bool {
		status := j.status(t)
		if status == "FAILED" {
			t.Fatal("the job failed")
		}
		return status == "SUCCEEDED"
	})
}

// log is what the job has written.
func (j *job) log() string {
	var answer struct{ Logs string }
	if err := j.ask("/logs", &answer); err != nil {
		return err.Error()
	}
	return answer.Logs
}

func (j *job) get(t *testing.T, path string, answer any) {
	t.Helper()
	if err := j.ask(path, answer); err != nil {
		t.Fatal(err)
	}
}

func (j *job) ask(path string, answer any) error {
	url := "http://" + j.s.Dashboard + "/api/jobs/" + j.id + path
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// reports checks what the log says of where the job runs.
func (j *job) reports(t *testing.T) {
	t.Helper()
	log := &tail{text: []byte(j.log())}
	for _, c := range []struct{ phase, name, want string }{
		{"ray job", "id", j.id},
		{"ray job", "address", j.s.Address},
		{"ray job", "version", ""},
		{"ray connect", "ray", j.s.Ray.Version},
		{"ray connect", "address", j.s.Address},
		{"ray place", "group", ""},
		{"ray order", "bundles", ""},
		{"ray identify", "ranks", ""},
	} {
		got := attribute(log.line(`msg="`+c.phase+`"`), c.name)
		if got == "" || c.want != "" && got != c.want {
			t.Errorf("%s: %s is %q, want %q", c.phase, c.name, got, c.want)
		}
	}
}

// gone checks that soon nothing of the job is left.
func (j *job) gone(t *testing.T) {
	t.Helper()
	j.s.clean(t)
	j.s.NoneLeft(t, j.id)
}

// TestJob runs the program as a job of the cluster, to its end and until it is stopped.
func TestJob(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		t.Run("batch", func(t *testing.T) {
			in, out := rows(t, 20, 20)
			j := s.submit(t, "run-batch", "-i", in, "-o", out)
			j.succeeds(t)
			j.reports(t)
			if n := lines(t, out); n != 20 {
				t.Errorf("%d lines for 20 rows", n)
			}
			j.gone(t)
		})
		t.Run("batch stopped", func(t *testing.T) {
			in, out := rows(t, 20000, 200)
			j := s.submit(t, "run-batch", "-i", in, "-o", out)
			eventually(t, "answers", func() bool { return lines(t, out) > 100 })
			j.stop(t)
			j.gone(t)
		})
		t.Run("data", func(t *testing.T) {
			j := s.dataJob(t, "embeddings", t.TempDir())
			j.succeeds(t)
			if log := j.log(); !strings.Contains(log, " rows/s, ") {
				t.Errorf("no progress in the log:\n%s", log)
			}
			j.gone(t)
		})
		t.Run("data stopped", func(t *testing.T) {
			folder := t.TempDir()
			j := s.dataJob(t, "many", folder)
			eventually(t, "answers", func() bool { return kept(t, folder) > 30 })
			j.stop(t)
			j.gone(t)
		})
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("serve stopped,frozen=%v", frozen), func(t *testing.T) {
				j := s.submit(t, "serve", "--port", "0")
				eventually(t, "the server",
					func() bool { return strings.Contains(j.log(), "msg=ready") })
				j.reports(t)
				if frozen {
					// It does not see SIGTERM, and Ray kills it three seconds later.
					if err := syscall.Kill(j.pid(t), syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
				}
				j.stop(t)
				j.gone(t)
			})
		}
	})
}

// pid is the program's.
func (j *job) pid(t *testing.T) int {
	t.Helper()
	log := &tail{text: []byte(j.log())}
	pid, err := strconv.Atoi(attribute(log.line(`msg="ray job"`), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func (j *job) stop(t *testing.T) {
	t.Helper()
	if out, err := j.ray("stop", j.id); err != nil {
		t.Fatalf("%s\n%v", out, err)
	}
	eventually(t, "the job to be stopped", func() bool { return j.status(t) == "STOPPED" })
}

// rows is a file of requests for so many tokens each, and a path for the answers.
func rows(t *testing.T, count, tokens int) (in, out string) {
	t.Helper()
	dir := t.TempDir()
	in, out = filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out.jsonl")
	var text strings.Builder
	for i := range count {
		fmt.Fprintf(&text, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":`+
			`{"prompt":"func %d","max_tokens":%d,"ignore_eos":true}}`+"\n", i, i, tokens)
	}
	if err := os.WriteFile(in, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return in, out
}

// lines is how many lines a file has, 0 where there is none.
func lines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
