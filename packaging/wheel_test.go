package packaging_test

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// wheel builds one of a binary.
func wheel(t *testing.T, python, version, arch, binary string) string {
	t.Helper()
	out, err := exec.Command(python, "-B", "../scripts/wheel.py", version, arch, binary, t.TempDir()).
		CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func pythonOfWheels(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	if exec.Command(python, "-c", "import tomllib").Run() != nil {
		t.Skip("python3 is older than 3.11")
	}
	return python
}

// TestWheel builds wheels: the same bytes from the same files, with the binary in them.
func TestWheel(t *testing.T) {
	python := pythonOfWheels(t)
	binary := filepath.Join(t.TempDir(), "eagleray")
	if err := os.WriteFile(binary, []byte("\x7fELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ version, arch, name string }{
		{"v1.2.3", "amd64", "eagleray-1.2.3-py3-none-manylinux_2_17_x86_64.whl"},
		{"v1.2.3-rc.1", "arm64", "eagleray-1.2.3rc1-py3-none-manylinux_2_17_aarch64.whl"},
		{"0.0.0-gabc", "amd64", "eagleray-0.0.0+gabc-py3-none-manylinux_2_17_x86_64.whl"},
	} {
		path := wheel(t, python, test.version, test.arch, binary)
		if filepath.Base(path) != test.name {
			t.Errorf("%s of %s is %s", test.arch, test.version, path)
		}
		one, err1 := os.ReadFile(path)
		two, err2 := os.ReadFile(wheel(t, python, test.version, test.arch, binary))
		if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: built twice, it differs (%v, %v)", test.name, err1, err2)
		}
		archive, err := zip.NewReader(bytes.NewReader(one), int64(len(one)))
		if err != nil {
			t.Fatal(err)
		}
		modes := map[string]os.FileMode{}
		for _, f := range archive.File {
			modes[f.Name] = f.Mode()
			if strings.Contains(f.Name, "__pycache__") {
				t.Errorf("%s has %s", test.name, f.Name)
			}
		}
		for name, mode := range map[string]os.FileMode{"eagleray/bin/eagleray": 0o755,
			"eagleray/__init__.py": 0o644, "eagleray/py.typed": 0o644} {
			if modes[name] != mode {
				t.Errorf("%s: %s has mode %v", test.name, name, modes[name])
			}
		}
		if info := strings.SplitN(test.name, "-py3", 2)[0] + ".dist-info/"; test.version == "v1.2.3" {
			f, err := archive.Open(info + "METADATA")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(f)
			for _, want := range []string{"Version: 1.2.3\n", "Requires-Python: >=3.9\n",
				"Provides-Extra: ray\n", `extra == "ray"`} {
				if !strings.Contains(string(text), want) {
					t.Errorf("METADATA lacks %q:\n%s", want, text)
				}
			}
		}
	}
}

// TestInstalledWheel installs a wheel into an environment of its own, where it needs nothing else.
func TestInstalledWheel(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-full: it makes a virtual environment")
	}
	python := pythonOfWheels(t)
	dir := t.TempDir()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir // not where the sources are
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := run(name, args...)
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return out
	}
	binary := filepath.Join(dir, "built")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/eagleray").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := wheel(t, python, "v1.2.3", runtime.GOARCH, binary)
	bin := filepath.Join(dir, "env", "bin")
	must(python, "-m", "venv", filepath.Join(dir, "env"))
	must(filepath.Join(bin, "pip"), "install", "--no-index", "--disable-pip-version-check", path)
	const answer = "Open opens the named file for reading.\n"
	if got := must(filepath.Join(bin, "eagleray"), "generate", "What does os.Open do?"); got != answer {
		t.Errorf("the command answers %q", got)
	}
	got := must(filepath.Join(bin, "python"), "-c", `
from eagleray import LLM, SamplingParams
with LLM() as llm:
    talk = [{"role": "user", "content": "What does os.Open do?"}]
    print(llm.chat(talk, SamplingParams(temperature=0))[0].outputs[0].text)`)
	if got != answer {
		t.Errorf("LLM answers %q", got)
	}
	packed, err := filepath.Glob(filepath.Join(dir, "env/lib/python3*/site-packages/eagleray/bin/eagleray"))
	if err != nil || len(packed) != 1 {
		t.Fatal(packed, err)
	}
	if err := os.Remove(packed[0]); err != nil {
		t.Fatal(err)
	}
	out, err := run(filepath.Join(bin, "eagleray"), "version")
	if err == nil || !strings.Contains(out, "no eagleray binary for linux on ") ||
		!strings.Contains(out, "site-packages/eagleray/bin/eagleray is not in this package") {
		t.Errorf("without its binary: %v\n%s", err, out)
	}
}
