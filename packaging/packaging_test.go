// Package packaging_test holds the two descriptions of the Debian package to each other, and what
// is installed to the program.
package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/eagleray/eagleray/internal/ops/config"
)

func read(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		t.Fatal(name, err)
	}
}

// TestSamePackage compares what GoReleaser puts into the package with what scripts/dist.sh does.
// The binary is GoReleaser's own to add.
func TestSamePackage(t *testing.T) {
	var direct map[string]any
	var release struct{ Nfpms []map[string]any }
	read(t, "nfpm.yaml", &direct)
	read(t, "../.goreleaser.yaml", &release)
	if len(release.Nfpms) != 1 {
		t.Fatalf("%d packages", len(release.Nfpms))
	}
	contents, ok := direct["contents"].([]any)
	if !ok || len(contents) < 2 {
		t.Fatal("nfpm.yaml has no contents")
	}
	direct["contents"] = contents[1:]
	for _, key := range []string{"section", "priority", "maintainer", "description", "license",
		"recommends", "scripts", "contents"} {
		if !reflect.DeepEqual(direct[key], release.Nfpms[0][key]) {
			t.Errorf("%s: %v by nfpm.yaml, %v by .goreleaser.yaml", key, direct[key],
				release.Nfpms[0][key])
		}
	}
	for _, c := range contents {
		entry, _ := c.(map[string]any)
		source, _ := entry["src"].(string)
		if strings.HasPrefix(source, "bin/") || strings.HasPrefix(source, "$") {
			continue // built
		}
		if _, err := os.Stat(filepath.Join("..", source)); err != nil {
			t.Error(err)
		}
	}
}

// TestServiceConfig reads the file of flags as the service does, and what it shows as comments.
func TestServiceConfig(t *testing.T) {
	raw, err := os.ReadFile("serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^# ([a-z-]+:)`).ReplaceAll(raw, []byte("$1"))
	for name, text := range map[string][]byte{"as it is": raw, "all of it": shown} {
		cfg := config.Default()
		f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		f.SetNormalizeFunc(config.Normalize)
		f.StringVar(&cfg.Model.Path, "model", "", "")
		cfg.EngineFlags(f)
		cfg.ServerFlags(f)
		values, err := config.ParseFile(text)
		if err != nil {
			t.Fatal(name, err)
		}
		if err := config.Fill(f, "--config serve.yaml", values); err != nil {
			t.Error(name, err)
		}
		if cfg.Server.Host != "127.0.0.1" {
			t.Errorf("%s: host %s", name, cfg.Server.Host)
		}
	}
}

// TestService lets systemd judge the unit: it knows every setting, and leaves little exposed.
func TestService(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	out, err := exec.Command(analyze, "verify", "--man=no", "eagleray.service",
		"eagleray.socket").CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "/usr/bin/eagleray is not executable") {
			t.Errorf("verify: %s", line)
		}
	}
	if err != nil && len(out) == 0 {
		t.Error(err)
	}
	// Tenths of systemd's exposure level; 10 is a service without any confinement.
	out, err = exec.Command(analyze, "security", "--offline=true", "--threshold=20",
		"eagleray.service").CombinedOutput()
	if err != nil {
		t.Errorf("security: %v: %s", err, out[max(0, len(out)-300):])
	}
}
