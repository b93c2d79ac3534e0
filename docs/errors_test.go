package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/eagleray/eagleray/"

// onlyFiles narrows packages of which little belongs to a start.
var onlyFiles = map[string][]string{
	"cmd/eagleray":             {"root.go", "serve.go"}, // the rest are other verbs
	"internal/api/openai":      {"model.go"},            // the rest are errors of requests
	"internal/api/server":      {"tls.go"},
	"internal/link/join":       {"driver.go"}, // rank.go is the other end, which this one reports
	"internal/rank/model":      {"decoder.go", "fit.go", "model.go", "opt.go", "source.go"},
	"internal/text/tokenizer":  {"tokenizer.go"}, // the rest stand behind its "tokenizer.json: …"
	"internal/rank/worker":     {"rank.go"},      // the rest are broken promises of the driver
	"internal/ops/store":       {"store.go"},     // the rest are errors of requests
	"internal/engine/replicas": {"router.go"},    // the rest are errors of requests
	"internal/ray":             {"client.go", "errors.go", "process.go", "versions.go"},
	"internal/group/executor":  {"connect.go", "executor.go", "load.go"}, // not those of steps
	"internal/engine": {"cache.go", "cluster.go", "folder.go", "generation.go", "modelconfig.go",
		"nodes.go", "open.go", "pooling.go", "ranks.go", "tokenizer.go", "transfer.go"},
	// again.go falls back to start.go, which says its own.
	"internal/group/launch/rayactor": {"bundles.go", "census.go", "child.go", "environment.go",
		"group.go", "identify.go", "launcher.go", "names.go", "runtimeenv.go", "start.go"},
	"internal/compute/cpu":          {"device.go"},
	"internal/link/queue/handshake": {"bind.go"}, // the rest stands behind the rank
	// safetensors.go, rope.go and dummy.go stand behind "malformed checkpoint", "rope: …"
	// and the names of tensors.
	"internal/rank/model/checkpoint": {"checkpoint.go", "config.go", "family.go", "fields.go", "folder.go",
		"generation.go", "index.go"},
}

// noStart are packages, with those below them, whose errors do not end a start by themselves.
var noStart = map[string]string{
	"cmd/eagleray/internal":         "measurements",
	"internal/api/attach":           "what a program sends",
	"internal/api/batch":            "rows of batches",
	"internal/api/call":             "requests",
	"cmd/eagleray/internal/bench":   "measurements",
	"internal/text/chattemplate":    "what is wrong in a template stands behind its source",
	"internal/link/collective":      "sums between ranks, which stand behind \"rank …\"",
	"internal/compute":              "arguments of kernels",
	"cmd/eagleray/internal/doctor":  "checks of the doctor, which say what to do",
	"internal/group/verdict":        "which rank is at fault",
	"internal/sys/futex":            "system calls of a wait",
	"internal/text/grammars":        "requests",
	"internal/sys/jsonx":            "where a JSON text is wrong stands behind the name of its file",
	"internal/engine/kvcache":       "steps",
	"internal/rank/kvtransfer":      "requests, and what stands behind the rank",
	"internal/ops/metrics":          "measurements",
	"internal/rank/model/layers":    "a tensor's error stands behind \"load …\"",
	"internal/sys/offheap":          "system calls, which stand behind \"rank …\"",
	"internal/api/openai/responses": "requests",
	"internal/api/openai/messages":  "requests",
	"internal/link/queue":           "what breaks between the driver and a rank stands behind the rank",
	"internal/ray/frame":            "the form of messages",
	"internal/ray/loopback":         "clusters of tests and of measurements",
	"internal/engine/rlhf":          "what a trainer asks for",
	"internal/api/pdproxy":          "requests, and addresses of another verb",
	"internal/rank/runner":          "steps",
	"internal/compute/sample":       "requests",
	"internal/engine/schedule":      "steps",
	"internal/link/status":          "steps",
	"internal/link/step":            "steps",
	"internal/rank/weights":         "updates of weights",
	"internal/api/dashboard":        "the page and its reports",
}

// documented reads the errors of errors.md: the lines of its blocks of errors.
func documented(t *testing.T) []string {
	var texts []string
	inside := false
	for line := range strings.Lines(string(read(t, "docs/errors.md"))) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```errors"
		case inside:
			texts = append(texts, line)
		}
	}
	return texts
}

// TestErrorsAreDocumented holds errors.md to the sources: each error text of the packages that the
// program is made of is there, unless it is one of those that end no start by themselves, and what
// is there is a text of the sources.
func TestErrorsAreDocumented(t *testing.T) {
	texts := documented(t)
	if len(texts) < 100 {
		t.Fatalf("errors.md has only %d errors", len(texts))
	}
	for i, text := range texts {
		if slices.Contains(texts[:i], text) {
			t.Errorf("errors.md: %q is there twice", text)
		}
	}
	all := map[string]bool{}
	for _, dir := range slices.Sorted(maps.Keys(packages(t))) {
		for file, found := range errorTexts(t, dir) {
			for _, text := range found {
				all[text] = true
				if starts(dir, file) && !slices.Contains(texts, text) {
					t.Errorf("%s: the error %q ends a start and is not in a block of docs/errors.md "+
						"(nor is its package or file set apart in docs/errors_test.go)", path.Join(dir, file), text)
				}
			}
		}
	}
	for _, text := range texts {
		if !all[text] {
			t.Errorf("errors.md: %q is no error of the sources", text)
		}
	}
}

func starts(dir, file string) bool {
	if only, ok := onlyFiles[dir]; ok {
		return slices.Contains(only, file)
	}
	for above := dir; above != "."; above = path.Dir(above) {
		if noStart[above] != "" {
			return false
		}
	}
	return true
}

// packages are the folders of those that cmd/eagleray is linked from.
func packages(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if found[dir] {
			return
		}
		found[dir] = true
		for _, f := range parsed(t, dir) {
			for _, i := range f.Imports {
				name, _ := strconv.Unquote(i.Path.Value)
				if below, ok := strings.CutPrefix(name, module); ok {
					visit(below)
				}
			}
		}
	}
	visit("cmd/eagleray")
	return found
}

// parsed are the sources of a package without its tests, by file name.
func parsed(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(dir), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = f
	}
	return files
}

// errorTexts are the texts from which a package makes errors, by file: of fmt.Errorf, errors.New,
// and of its own functions that hand a format on to fmt.Errorf.
func errorTexts(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files := parsed(t, dir)
	makers := map[string]int{"fmt.Errorf": 0, "errors.New": 0} // the argument that is the text
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && calls(fn.Body, "fmt.Errorf") {
				if at := formatParameter(fn.Type); at >= 0 {
					makers[fn.Name.Name] = at
				}
			}
		}
	}
	found := map[string][]string{}
	for name, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			at, ok := makers[callee(c)]
			if !ok {
				_, method, _ := strings.Cut(callee(c), ".")
				at, ok = makers[method]
			}
			if ok && at < len(c.Args) {
				if text := normal(literal(c.Args[at])); telling.MatchString(text) {
					found[name] = append(found[name], text)
				}
			}
			return true
		})
	}
	return found
}

// formatParameter is where a function of a format and its arguments takes the format, or -1.
func formatParameter(f *ast.FuncType) int {
	at, last := -1, ""
	count := 0
	for _, p := range f.Params.List {
		for _, name := range p.Names {
			if _, rest := p.Type.(*ast.Ellipsis); rest && last == "format" {
				at = count - 1
			}
			last = name.Name
			count++
		}
	}
	return at
}

func calls(body *ast.BlockStmt, name string) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		found = found || ok && callee(c) == name
		return !found
	})
	return found
}

func callee(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	}
	return ""
}

// literal is the text of an expression, with … for what is known only when it runs.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err == nil {
			return text
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return "…"
}

var (
	verb    = regexp.MustCompile(`%[-+# 0]*[\d.*]*[a-zA-Z]`)
	several = regexp.MustCompile(`……+`)
	// telling texts have a word of their own.
	telling = regexp.MustCompile(`[A-Za-z]{2}`)
)

func normal(text string) string {
	text = verb.ReplaceAllString(text, "…")
	text = several.ReplaceAllString(strings.ReplaceAll(text, "%%", "%"), "…")
	return strings.TrimSpace(strings.ReplaceAll(text, "\n", " "))
}
