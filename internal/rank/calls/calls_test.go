package calls

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTable wants one handler of each call, a caller, and its name written nowhere else.
func TestTable(t *testing.T) {
	names := table(t)
	if len(names) < 15 {
		t.Fatalf("calls %v", names)
	}
	handled, called := map[string]int{}, map[string]int{}
	for _, dir := range []string{"../../../internal", "../../../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(path, "rank/calls/calls.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for v, name := range names {
				n := strings.Count(string(raw), "calls."+v+",") + strings.Count(string(raw),
					"calls."+v+")")
				if strings.HasSuffix(filepath.Dir(path), "rank/worker") {
					handled[v] += n
				} else {
					called[v] += n
				}
				if strings.Contains(name, "_") && strings.Contains(string(raw),
					strconv.Quote(name)) {
					t.Errorf("%s writes the name of calls.%s", path, v)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for v, name := range names {
		if handled[v] != 1 {
			t.Errorf("%d handlers of %s", handled[v], v)
		}
		if called[v] == 0 && !slices.Contains(Public(), name) {
			t.Errorf("no caller of %s", v)
		}
	}
}

// table lists the variables of the table with the names of the calls.
func table(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "calls.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			pair := v.Values[0].(*ast.CompositeLit).Elts[0].(*ast.KeyValueExpr)
			name, err := strconv.Unquote(pair.Value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			names[v.Names[0].Name] = name
		}
	}
	return names
}
