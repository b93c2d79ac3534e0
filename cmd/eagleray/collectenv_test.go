package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A report names the machine, the Python and Ray that would be used, and no secret.
func TestCollectEnv(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho 3.11.9; echo 2.60.0\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	p := command(t, "", "collect-env", "--ray-python", python)
	p.cmd.Env = append(p.cmd.Env, "HF_TOKEN=hf_secret1", "VLLM_API_KEY=secret2",
		"HF_ENDPOINT=https://me:secret3@hub", "RAY_ADDRESS=10.0.0.1:6379")
	p.start()
	if code := p.exit(); code != 0 {
		t.Fatalf("exit code %d, errors %q", code, p.err.String())
	}
	got := p.out.String()
	for _, want := range []string{"version: ", "kernel ", "features: ", "cores: ", "memory: ",
		"python:            3.11.9, " + python,
		"ray:               2.60.0", "HF_TOKEN=(set)", "VLLM_API_KEY=(set)",
		"RAY_ADDRESS=10.0.0.1:6379"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "secret1") || strings.Contains(got, "secret2") || strings.Contains(got,
		"secret3") {
		t.Errorf("a secret is in\n%s", got)
	}
	p = command(t, "", "collect-env", "--ray-python", filepath.Join(dir, "none"))
	p.start()
	if code := p.exit(); code != 0 || !strings.Contains(p.out.String(),
		"python:            none: ") {
		t.Errorf("without Python: exit code %d, printed %q", code, p.out.String())
	}
}
