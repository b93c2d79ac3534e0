package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/config"
)

// TestResolveMakesFoldersAbsolute: ranks that Ray starts have another working folder.
func TestResolveMakesFoldersAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("tiny", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("tiny/config.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.Model.Path = "./tiny"
	b := &opening{ctx: t.Context(), cfg: cfg}
	if err := b.resolve(); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(here, "tiny"); b.dir != want || b.fromHub || b.info.Root != "./tiny" {
		t.Errorf("folder %s (from the Hub: %v), served as %s; want %s", b.dir, b.fromHub, b.info.Root, want)
	}
}
