package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/stages"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/libcudatest"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// proofModels are the fixtures.
const proofModels = "../../testdata/models"

// results reads a file of results, of which each line is a stage.
func results(t *testing.T, path string) (list []stages.Result) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var r stages.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, r)
	}
	return list
}

func names(list []stages.Result) (names []string) {
	for _, r := range list {
		names = append(names, r.Stage)
	}
	return names
}

// TestProof runs all stages on the machine, at the smallest sizes.
func TestProof(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "proof.jsonl")
	code, stdout, stderr := execute(t, nil, "proof", "--driver", "machine", "--models", proofModels,
		"--families", "llama-tiny", "--soak", "100ms", "--output-json", path)
	list := results(t, path)
	got, all := names(list), stages.Names()
	slices.Sort(got)
	slices.Sort(all)
	if code != 0 || !slices.Equal(got, all) {
		t.Fatalf("exit code %d, stages %v\n%s%s", code, names(list), stdout, stderr)
	}
	for _, r := range list {
		if !r.Pass || r.Error != "" || len(r.Rows) == 0 || r.Driver != "machine" {
			t.Errorf("%+v", r)
		}
		for _, row := range r.Rows {
			if row.Unit == "ms" && row.Ours != nil {
				t.Errorf("%s, %s: a machine has no times", r.Stage, row.Name)
			}
		}
	}
	for _, r := range list {
		least := map[string]int{"silicon": len(proof.Covered()), "bits": 22}[r.Stage]
		if len(r.Rows) < least {
			t.Errorf("stage %s has %d rows, not %d", r.Stage, len(r.Rows), least)
		}
		for _, row := range r.Rows {
			if least > 0 && (row.Listed || row.Failed) { // a unit in the last place is listed
				t.Errorf("stage %s: %+v", r.Stage, row)
			}
		}
	}
	for _, want := range []string{"not on a GPU", "tiny decode 3", "8 of 8 tokens equal"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, stdout)
		}
	}
	shown, table, _ := execute(t, nil, "proof", "--show", path)
	if shown != 0 || table != stdout {
		t.Errorf("exit code %d, another table:\n%s", shown, table)
	}
}

// TestProofShow prints the table of what an H200 showed, of which two stages failed.
func TestProofShow(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := execute(t, nil, "proof", "--show", "testdata/h200.jsonl")
	if code != 1 || !strings.HasPrefix(stdout, "On GPU 0, by NVIDIA's driver.\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{"72 of 72 kernels have the PTX's bits", "kernels  ", "FAIL",
		"qwen3-8b decode 1 at 1024", "1.91"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("not in the table: %s", want)
		}
	}
}

// TestProofGoesOn has stages fail and be late: those after them run.
func TestProofGoesOn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "proof.jsonl")
	code, stdout, stderr := execute(t, nil, "proof", "--driver", "machine", "--models", t.TempDir(),
		"--families", "absent", "--stage", "probe,models,soak", "--soak", "10ms", "--output-json",
		path)
	list := results(t, path)
	if code != exitError || !slices.Equal(names(list), []string{"probe", "models", "soak"}) ||
		!list[0].Pass || list[1].Pass || list[1].Error == "" || !list[2].Pass {
		t.Errorf("exit code %d, %+v\n%s%s", code, list, stdout, stderr)
	}
	late := filepath.Join(t.TempDir(), "proof.jsonl")
	code, _, _ = execute(t, nil, "proof", "--driver", "machine", "--stage", "kernels",
		"--deadline", "1ms", "--output-json", late)
	if r := results(t, late); code != exitError || len(r) != 1 ||
		!strings.HasPrefix(r[0].Error, "late: ") {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

// TestProofDriver runs the stages that need no GPU's kernels on a driver that answers.
func TestProofDriver(t *testing.T) {
	t.Parallel()
	library := libcudatest.Build(t, t.TempDir())
	path := filepath.Join(t.TempDir(), "proof.jsonl")
	code, stdout, stderr := execute(t, nil, "proof", "--libcuda", library, "--stage", "probe",
		"--output-json", path)
	if r := results(t, path); code != 0 || len(r) != 1 || r[0].Driver != "libcuda" ||
		r[0].Device != "NVIDIA H200" || !strings.Contains(stdout, "On GPU 0") {
		t.Errorf("exit code %d, %+v\n%s%s", code, r, stdout, stderr)
	}
}

// TestProofNoDevice wants the exit code 3 without a driver, and 2 for mistakes.
func TestProofNoDevice(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(t.TempDir(), "libcuda.so.1")
	code, stdout, stderr := execute(t, nil, "proof", "--libcuda", absent)
	if code != exitNoDevice || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	for _, line := range []string{"proof --driver cpu", "proof --stage kernel",
		"proof --skip nothing", "proof --shapes llama", "proof now"} {
		if code, stdout, _ := execute(t, nil, strings.Fields(line)...); code != exitUsage ||
			stdout != "" {
			t.Errorf("%s: exit code %d, %s", line, code, stdout)
		}
	}
}
