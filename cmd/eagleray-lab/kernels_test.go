package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/kernelbench"
)

// TestKernels wants a row for each type of weights, and for each type that a cache can have, with
// figures of the kernel and of its bounds.
func TestKernels(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "figures.json")
	code, stdout, stderr := execute(t, os.Args[0], "kernels", "--shapes", "96x64", "--rows", "1,3",
		"--positions", "40", "--threads", "1", "--rounds", "1", "--output-json", file)
	if code != 0 || !strings.Contains(stdout, "time / floor") {
		t.Fatalf("exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []kernelbench.Row
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	levels, counts := map[string]bool{}, map[string]int{}
	for _, r := range rows {
		levels[r.Level] = true
		counts[r.Kernel+" "+r.Type]++
		if r.US <= 0 || r.ReadUS <= 0 || r.Ratio <= 0 || r.Bytes < 96*64/2 ||
			r.Multiplies < 64*96 ||
			(r.Instruction == "") != (r.MultiplyUS == 0) {
			t.Errorf("%+v", r)
		}
	}
	for _, kernel := range kernelbench.Kernels {
		for _, typ := range kernelbench.Types {
			want := 2 * len(levels)
			if kernel == "attention" && !strings.Contains("bf16 f16 f32 int8 e4m3", typ) {
				want = 0
			}
			if n := counts[kernel+" "+typ]; n != want {
				t.Errorf("%d rows of %s %s, want %d", n, kernel, typ, want)
			}
		}
	}
}

// TestKernelsMistakes refuses values by the flag's name.
func TestKernelsMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--shapes 3072":   `--shapes "3072"`,
		"--shapes 0x4":    `--shapes "0x4"`,
		"--rows 0":        "--rows [0]",
		"--threads -1":    "--threads [-1]",
		"--types int4":    `--types "int4"`,
		"--kernels norm":  `--kernels "norm"`,
		"--cpu-isa sse":   "--cpu-isa",
		"--rounds 0":      "--rounds [0]",
		"--positions 1,0": "--positions [1 0]",
	} {
		code, _, stderr := execute(t, os.Args[0], append([]string{"kernels"},
			strings.Fields(args)...)...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q", args, code, stderr)
		}
	}
}
