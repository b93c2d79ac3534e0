package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// verbs are the verbs of protocols, each with its one meaning.
const verbs = `
reserve, release      memory, a place or load is set aside for an owner, and is free again
pin, release          KV blocks or files stay unchanged while another process reads them
acquire, release      a lock, a turn, or a use of something shared
register, deregister  a rank, a node or an engine is entered in a table
join, leave           membership of a cluster or of a group of ranks
detach, reuse         a group ends without its ranks; the next group goes on with them
abandon               a process that cannot be killed is not waited for any more
drain                 no new work comes, and the work under way ends
cancel                work that no caller wants any more ends early
reject                a message is refused, and its sender is told why
push, pop, next       an element enters a queue, or leaves it
fetch, publish        KV blocks or weights are read from, or shown to, another process
resolve               names, flags or files become the values that are used
close                 everything that an object owns ends`

// banned are everyday verbs that stood for several of these steps each, with words to use instead.
var banned = map[string]string{
	"bring": "send or fetch", "claim": "register, reserve or acquire",
	"forget": "remove or deregister", "forsake": "cancel", "give": "send or release",
	"hold": "pin or reserve", "keep": "pin or reuse", "lapse": "expire",
	"offer": "publish or add", "renounce": "cancel or release", "settle": "resolve or await",
	"take": "pop, next, reserve or acquire", "withdraw": "cancel",
}

// exempt are parsers and sets, which take texts and hold elements as those of the field do.
var exempt = []string{"text/constrain"}

// TestVerbs wants no function or method whose name begins with a banned verb.
func TestVerbs(t *testing.T) {
	files := token.NewFileSet()
	check := func(id *ast.Ident) {
		verb := strings.ToLower(id.Name)
		if at := strings.IndexFunc(id.Name[1:], unicode.IsUpper); at >= 0 {
			verb = verb[:at+1]
		}
		if use := banned[verb]; use != "" {
			t.Errorf("%v: %s: %q has several meanings: use %s", files.Position(id.Pos()), id.Name,
				verb, use)
		}
	}
	visit := func(name string, d fs.DirEntry, err error) error {
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), "../internal/")
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") ||
			withinAny(pkg, exempt) {
			return err
		}
		parsed, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for n := range ast.Preorder(parsed) {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(n.Name)
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					for _, id := range m.Names {
						check(id)
					}
				}
			}
		}
		return nil
	}
	for _, top := range []string{"../internal", "../cmd"} {
		if err := filepath.WalkDir(top, visit); err != nil {
			t.Fatal(err)
		}
	}
	if t.Failed() {
		t.Log("the verbs of protocols:" + verbs)
	}
}
