package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestDist makes a release of a clone with what is changed here, and installs each product as its
// user would.
func TestDist(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full makes a release")
	}
	python := pythonOfWheels(t)
	clone := t.TempDir()
	run(t, "..", "sh", "-euc", `git clone -q . "$1"
		git ls-files -z -co --exclude-standard | tar --null --ignore-failed-read -T - -c | tar -x -C "$1"`, "sh", clone)
	t.Setenv("VERSION", "v1.2.3")
	run(t, clone, "scripts/dist.sh")
	dist := filepath.Join(clone, "bin/dist")
	if n := strings.Count(run(t, dist, "sha256sum", "-c", "SHA256SUMS"), ": OK"); n != 8 {
		t.Errorf("%d products", n)
	}
	product := func(name string) string { return filepath.Join(dist, name) }
	answers := func(command ...string) {
		t.Helper()
		if got := run(t, "", command[0], append(command[1:], "generate",
			question)...); got != answer {
			t.Errorf("%q answers %q", command, got)
		}
		if got := run(t, "", command[0], append(command[1:], "version")...); !strings.HasPrefix(got,
			"eagleray v1.2.3 ") {
			t.Errorf("%q is %q", command, got)
		}
	}
	// probes wants the program for GPUs to be attached: it finds no GPU, or some.
	probes := func(program string) {
		t.Helper()
		out, err := exec.Command(program, "cuda", "probe", "--json").Output()
		if !strings.Contains(string(out), `"devices"`) {
			t.Errorf("%s cuda probe: %v, %s", program, err, out)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		dir, folder := t.TempDir(), "eagleray_1.2.3_linux_"+arch
		run(t, dir, "tar", "-xzf", product(folder+".tar.gz"))
		for _, name := range []string{"LICENSE", "README.md", "man/eagleray.1.gz",
			"completions/eagleray.bash"} {
			if _, err := os.Stat(filepath.Join(dir, folder, name)); err != nil {
				t.Error(err)
			}
		}
		if command := []string{filepath.Join(dir, folder, "eagleray")}; arch == runtime.GOARCH {
			answers(command...)
			probes(command[0])
		} else if qemu, err := exec.LookPath("qemu-aarch64-static"); err == nil && arch == "arm64" {
			answers(append([]string{qemu}, command...)...)
		}
	}
	t.Run("package", func(t *testing.T) {
		if _, err := exec.LookPath("dpkg"); err != nil || os.Getuid() != 0 {
			t.Skip("no dpkg here, or no root")
		}
		root := t.TempDir()
		run(t, root, "sh", "-euc",
			"mkdir -p var/lib/dpkg/info var/lib/dpkg/updates; : >var/lib/dpkg/status")
		run(t, "", "dpkg", "--root="+root, "--log=/dev/null", "--force-script-chrootless", "-i",
			product("eagleray_1.2.3_"+runtime.GOARCH+".deb"))
		answers(filepath.Join(root, "usr/bin/eagleray"))
		probes(filepath.Join(root, "usr/bin/eagleray"))
		for _, name := range []string{"etc/eagleray/serve.yaml",
			"usr/share/man/man1/eagleray-serve.1.gz", "usr/lib/systemd/system/eagleray.service"} {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("wheel", func(t *testing.T) {
		wheels := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
		installed(t, python, product(
			"eagleray-1.2.3-py3-none-manylinux_2_17_"+wheels[runtime.GOARCH]+".whl"))
	})
	t.Run("image", func(t *testing.T) {
		buildah := newBuildah(t)
		c := buildah("from", "docker-archive:"+product(
			"eagleray_1.2.3_linux_"+runtime.GOARCH+"_image.tar"))
		root := buildah("mount", c)
		ownsModels(t, root)
		served(t, root)
	})
}

// TestDistSaysWhatIsMissing runs it with less than it needs.
func TestDistSaysWhatIsMissing(t *testing.T) {
	idle, err := exec.LookPath("true")
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct{ without, set, want string }{
		{"go", "", "scripts/dist.sh needs Go (go.mod says which)\n"},
		{"python3", "", "scripts/dist.sh needs Python 3.11 or newer, for the wheels\n"},
		{"git", "", "scripts/dist.sh needs git and a clone with a commit\n"},
		{"", "CERTIFICATES=/nowhere",
			"scripts/dist.sh needs certificates of authorities: CERTIFICATES=/nowhere is no " +
				"file\n"},
	} {
		bin := t.TempDir()
		for _, name := range []string{"bash", "dirname"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skip(err)
			}
			if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		// What else it looks for is there, and does nothing.
		for _, name := range []string{"git", "go", "gzip", "python3", "tar"} {
			if name == c.without {
				continue
			}
			if err := os.Symlink(idle, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		dist := exec.Command("../scripts/dist.sh")
		dist.Env = []string{"PATH=" + bin, "CERTIFICATES=go.mod", c.set}
		out, err := dist.CombinedOutput()
		if err == nil || string(out) != c.want {
			t.Errorf("without %q: %v, %q", c.without, err, out)
		}
	}
}
