// Package ray_test runs whole engines on real Ray: --distributed-executor-backend ray, in this
// process and as the program.
package ray_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/eagleray/eagleray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// nodeVariable is in the environment of all nodes, with nodeValue.
const (
	nodeVariable = "EAGLERAY_TEST_NODE"
	nodeValue    = "of the node"
)

// ownEnv is the environment of this process before any test changed it.
var ownEnv = os.Environ()

// TestMain lets the test binary be its own worker process, as the program is.
func TestMain(m *testing.M) {
	eagleray.RunWorker()
	if err := nodeEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	raytest.Main(m)
}

// nodeEnvironment sets what the nodes inherit: a variable of tests, and where the Python package
// and its binary are.
func nodeEnvironment() error {
	if os.Getenv("EAGLERAY_RAY") == "" {
		return nil // no cluster is started
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	binary, err := build()
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv(nodeVariable, nodeValue),
		os.Setenv("PYTHONPATH", filepath.Join(root, "python")),
		os.Setenv("EAGLERAY_BINARY", binary))
}

// program is the built command, in a folder that goes with this process.
func program(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "eagleray-ray-test")
	if err != nil {
		return "", err
	}
	if err := removeAfter(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "eagleray")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path,
		"github.com/eagleray/eagleray/cmd/eagleray")
	cmd.Env = ownEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, out)
	}
	return path, nil
})

// held is the end of a pipe that stays open for as long as this process lives; children do not
// inherit it.
var held *os.File

// removeAfter removes a folder when this process has ended, however it did.
func removeAfter(dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	held = w
	cmd := exec.Command("sh", "-c", `cat; rm -rf "$0"`, dir)
	cmd.Stdin = r
	return cmd.Start()
}
