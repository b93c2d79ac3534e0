package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// asProgram makes the test binary be the program: tests start it as users do, and it starts its own
// ranks and readers.
const asProgram = "EAGLERAY_LAB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// execute runs a command line of the program at path to its end.
func execute(t *testing.T, path string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), path, args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	exit := (*exec.ExitError)(nil)
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), errOut.String()
}

// TestMeasures wants figures of each command, as a table and as JSON with the keys that scripts
// read.
func TestMeasures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, printed string
		check         func(m map[string]any) bool
	}{
		{"queue --duration 400ms", "round trip / floor (p50)", func(m map[string]any) bool {
			return m["ratio_p50"].(float64) > 0 && m["cpu_share"] != nil
		}},
		{"rpc --transport link --duration 300ms --running 16", "step round trip",
			func(m map[string]any) bool {
				return m["running"] == 16.0 && m["codec_us"].(float64) > 0
			}},
		{"step --running 8 --steps 50", "host p50", func(m map[string]any) bool {
			return m["running"] == 8.0 && m["host_us"].(map[string]any)["p99"].(float64) > 0 &&
				m["allocs_per_token"] != nil && m["floor_us"].(float64) > 0
		}},
		{"fleet experts --ranks 8,64 --rows 4 --layers 2", "2 layers",
			func(m map[string]any) bool {
				return m["rows"] == 4.0 && len(m["fleets"].([]any)) == 2 &&
					m["best_ranks"].(float64) > 0
			}},
	} {
		file := filepath.Join(t.TempDir(), "figures.json")
		code, stdout, stderr := execute(t, os.Args[0],
			append(strings.Fields(tt.args), "--output-json", file)...)
		if code != 0 || !strings.Contains(stdout, tt.printed) {
			t.Errorf("%s: exit code %d, printed %q, errors %q", tt.args, code, stdout, stderr)
			continue
		}
		if m := figures(t, file); !tt.check(m) {
			t.Errorf("%s: %v", tt.args, m)
		}
	}
}

// TestStepHTTP measures a server: that of the program eagleray beside this one.
func TestStepHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", dir,
		"../eagleray")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	lab := filepath.Join(dir, "eagleray-lab")
	if err := os.WriteFile(lab, self, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "http.json")
	code, stdout, stderr := execute(t, lab, "step", "--http", "--running", "4", "--steps", "100",
		"--step-time", "100us", "--output-json", file)
	if code != 0 || !strings.Contains(stdout, "streams") {
		t.Fatalf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	if m := figures(t, file); m["streams"] != 4.0 || m["tokens"].(float64) <= 0 ||
		m["tokens"].(float64) > 400 || m["cpu_us_per_token"].(float64) <= 0 {
		t.Errorf("through HTTP %v", m)
	}
}

func figures(t *testing.T, file string) (m map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace.json")
	for args, want := range map[string]string{
		"step --running 0":                      "--running",
		"step --steps 1":                        "--steps",
		"step --running 1,2 --trace " + trace:   "--trace",
		"step -dp 2":                            "--data-parallel-size",
		"fleet --ranks 8,0":                     "--ranks [8 0]",
		"fleet --max-processes 65":              "--max-processes 65",
		"fleet --latency -1s":                   "--latency -1s",
		"queue --no-such-flag":                  "--no-such-flag",
		"nothing":                               "nothing",
		"constrain --schemas /no --tokenizer x": "--tokenizer: no tokenizer.json",
	} {
		code, stdout, stderr := execute(t, os.Args[0], strings.Fields(args)...)
		wantCode := 2
		if strings.HasPrefix(args, "constrain") { // the line is right, the machine is not
			wantCode = 1
		}
		if code != wantCode || stdout != "" || !strings.HasPrefix(stderr, "eagleray-lab: ") ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %d; printed %q, errors %q, want %q", args, code,
				wantCode, stdout, stderr, want)
		}
	}
}
