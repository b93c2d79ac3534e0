package packaging_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const question, answer = "What does os.Open do?", "Open opens the named file for reading."

// run returns what a program prints that ends well.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	var log strings.Builder
	c := exec.Command(name, args...)
	c.Dir, c.Stderr = dir, &log
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, log.String())
	}
	return strings.TrimSpace(string(out))
}

// newBuildah runs buildah with images of its own.
func newBuildah(t *testing.T) func(args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil || os.Getuid() != 0 {
		t.Skip("no buildah here, or no root")
	}
	work := t.TempDir()
	return func(args ...string) string {
		t.Helper()
		return run(t, "", "buildah", append([]string{"--storage-driver", "vfs", "--root",
			filepath.Join(work, "root"), "--runroot", filepath.Join(work, "run")}, args...)...)
	}
}

// ownsModels fails unless the image's folder for models is its user's: a new volume of Docker has
// the owner of the folder that it is mounted on.
func ownsModels(t *testing.T, root string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(root, "models"))
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 65534 || s.Gid != 65534 {
		t.Errorf("the folder of models is of %d:%d", s.Uid, s.Gid)
	}
}

// TestImage builds the image as the Dockerfile says, from nothing that is not here, and has its
// program answer within it, copied out of it as into the pods of Ray, and as the chart's pod.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full builds the image")
	}
	buildah := newBuildah(t)
	t.Setenv("CGO_ENABLED", "0") // the image has no C library
	context, volume := t.TempDir(), t.TempDir()
	run(t, "", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(context,
		"eagleray"), "../cmd/eagleray")
	if err := os.CopyFS(filepath.Join(context, "python/eagleray"),
		os.DirFS("../python/eagleray")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(context, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	const authorities = "-----BEGIN CERTIFICATE-----\n"
	if err := os.WriteFile(filepath.Join(context, "ca-certificates.crt"), []byte(authorities),
		0o644); err != nil {
		t.Fatal(err)
	}
	buildah("build", "--isolation", "chroot", "-f", "Dockerfile", "-t", "eagleray", context)
	c := buildah("from", "eagleray")
	defer buildah("rm", c)
	const config = `[/usr/bin/eagleray] [serve --host 0.0.0.0] 65534:65534`
	if got := buildah("inspect", "--format",
		"{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}} {{.OCIv1.Config.User}}",
		c); got != config {
		t.Errorf("the image starts %s", got)
	}
	root := buildah("mount", c)
	ownsModels(t, root)
	in := func(args ...string) string {
		t.Helper()
		// Not by "buildah run", which loses what a program prints on a busy machine.
		out, err := pod(t, root, []string{"/opt/eagleray=" + volume},
			append([]string{"/usr/bin/eagleray"}, args...)).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if out := in("generate", question); out != answer {
		t.Errorf("within the image: %q", out)
	}
	in("copy", "/opt/eagleray")
	if out := run(t, "", filepath.Join(volume, "eagleray"), "generate", question); out != answer {
		t.Errorf("copied: %q", out)
	}
	if _, err := os.Stat(filepath.Join(volume, "python/eagleray/py.typed")); err != nil {
		t.Error(err)
	}
	if raw, err := os.ReadFile(filepath.Join(root,
		"etc/ssl/certs/ca-certificates.crt")); err != nil || string(raw) != authorities {
		t.Errorf("certificates %q, %v", raw, err)
	}
	var size int64
	err := filepath.WalkDir(filepath.Join(root, "usr"), func(_ string, e fs.DirEntry,
		err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		size += info.Size()
		return err
	})
	if err != nil || size > 40e6 {
		t.Errorf("%d bytes, %v", size, err)
	}
	t.Run("as a pod", func(t *testing.T) { served(t, root) })
}
