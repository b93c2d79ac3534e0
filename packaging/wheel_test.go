package packaging_test

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wheel builds one of a binary.
func wheel(t *testing.T, python, version, arch, binary string) string {
	t.Helper()
	out, err := exec.Command(python, "-B", "../scripts/wheel.py", version, arch, binary,
		t.TempDir()).
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
		if info := strings.SplitN(test.name, "-py3", 2)[0] +
			".dist-info/"; test.version == "v1.2.3" {
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

// installed installs a wheel into an environment of its own, where it needs nothing else.
func installed(t *testing.T, python, wheel string) {
	t.Helper()
	dir := t.TempDir() // not where the sources are
	t.Setenv("PATH", "/usr/bin:/bin")
	t.Setenv("HOME", dir)
	bin := filepath.Join(dir, "env", "bin")
	run(t, dir, python, "-m", "venv", filepath.Join(dir, "env"))
	run(t, dir, filepath.Join(bin, "pip"), "install", "--no-index", "--disable-pip-version-check",
		wheel)
	for _, command := range [][]string{{"eagleray"}, {"python", "-m", "eagleray"}} {
		if got := run(t, dir, filepath.Join(bin, command[0]), append(command[1:], "generate",
			question)...); got != answer {
			t.Errorf("%q answers %q", command, got)
		}
	}
	got := run(t, dir, filepath.Join(bin, "python"), "-c", `
from eagleray import LLM, SamplingParams
with LLM() as llm:
    talk = [{"role": "user", "content": "What does os.Open do?"}]
    print(llm.chat(talk, SamplingParams(temperature=0))[0].outputs[0].text)`)
	if got != answer {
		t.Errorf("LLM answers %q", got)
	}
	packed, err := filepath.Glob(filepath.Join(dir,
		"env/lib/python3*/site-packages/eagleray/bin/eagleray"))
	if err != nil || len(packed) != 1 {
		t.Fatal(packed, err)
	}
	fails := func(want ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(bin, "eagleray"), "version").CombinedOutput()
		for _, text := range append(want, "no eagleray binary for linux on ") {
			if err == nil || !strings.Contains(string(out), text) {
				t.Errorf("%v and %s instead of %q", err, out, text)
			}
		}
	}
	// A wheel of another platform, which pip would not unpack, says so.
	raw, err := os.ReadFile(packed[0])
	if err != nil {
		t.Fatal(err)
	}
	other, name := byte(183), "aarch64" // e_machine of ELF
	if raw[18] == other {
		other, name = 62, "x86_64"
	}
	raw[18] = other
	if err := os.WriteFile(packed[0], raw, 0o755); err != nil {
		t.Fatal(err)
	}
	fails("is for "+name, "another platform's")
	if err := os.Remove(packed[0]); err != nil {
		t.Fatal(err)
	}
	fails("site-packages/eagleray/bin/eagleray is not in this package")
}
