package compute_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnlyTheseKnowTheCPU holds the packages that may import compute/cpu or what is in it. Models,
// the driver and everything else above the runner go without.
func TestOnlyTheseKnowTheCPU(t *testing.T) {
	const root = "../.."
	allowed := map[string]bool{
		"internal/collective":   true, // sums of host memory
		"internal/model/layers": true, // the line at which another device goes
		"internal/runner":       true, // threads for sampling
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (name[0] == '.' || name == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil || strings.HasPrefix(folder, "internal/compute/cpu") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			if !strings.Contains(i.Path.Value, "/internal/compute/cpu") {
				continue
			}
			seen[folder] = true
			if !allowed[folder] {
				t.Errorf("%s imports %s", path, i.Path.Value)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range allowed {
		if !seen[folder] {
			t.Errorf("%s is allowed to import compute/cpu and does not", folder)
		}
	}
}
