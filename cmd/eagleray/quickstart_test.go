package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/synctext"
)

func quickstart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fenced is what stands in the document between a fence of that kind and its end.
func fenced(t *testing.T, document, kind string) string {
	t.Helper()
	_, after, ok := strings.Cut(document, "\n```"+kind+"\n")
	text, _, closed := strings.Cut(after, "\n```\n")
	if !ok || !closed {
		t.Fatalf("the document has no block %q", kind)
	}
	return text
}

// TestQuickstartLaptop runs the lines for a laptop, on a port that is free.
func TestQuickstartLaptop(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	document := quickstart(t)
	// The prompts of bench serve have a thousand tokens: two show what ten do.
	script := strings.NewReplacer("8000", freePort(t), "--num-prompts 10", "--num-prompts 2").
		Replace(fenced(t, document, "sh laptop"))
	bin := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(bin, "eagleray")); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "-e", "-c", script)
	c.Env = append(os.Environ(), asProgram+"=1", "PATH="+bin+":"+os.Getenv("PATH"))
	// A group of its own, which ends with the test.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out synctext.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v: %s", err, out.String())
		}
	case <-time.After(patience):
		t.Errorf("the script did not end: %s", out.String())
	}
	// A script that failed leaves a server; one that did not has ended it, and this finds no group.
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	for want := range strings.Lines(fenced(t, document, "text laptop")) {
		want = strings.TrimSpace(strings.Replace(want, " 10", " 2", 1))
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in what they print:\n%s", want, out.String())
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// serveLine is a command of a document, which may go on after a backslash.
var serveLine = regexp.MustCompile(`(?m)eagleray serve((?:[^\n\\&]|\\\n)*)`)

// TestQuickstartFlags holds all commands that serve, and the entry point of the KubeRay job, to the
// flags that there are.
func TestQuickstartFlags(t *testing.T) {
	t.Parallel()
	found := serveLine.FindAllStringSubmatch(quickstart(t), -1)
	if len(found) < 6 {
		t.Fatalf("only %d commands were found", len(found))
	}
	for _, m := range found {
		parseServe(t, m[1])
	}
}

func parseServe(t *testing.T, line string) config.Config {
	t.Helper()
	cfg := config.Default()
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetNormalizeFunc(config.Normalize)
	cfg.EngineFlags(f)
	cfg.ServerFlags(f)
	args := strings.Fields(strings.ReplaceAll(line, "\\\n", " "))
	err := f.Parse(config.Expand(f, args))
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		t.Errorf("%q: %v", line, err)
	}
	return cfg
}
