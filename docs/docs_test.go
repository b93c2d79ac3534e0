// Package docs_test holds the documents to the code: what they name exists.
package docs_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents lists the texts that are checked, relative to the repository.
func documents(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"*.md", "decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			list = append(list, path.Join("docs", filepath.ToSlash(f)))
		}
	}
	return list
}

// TestDecisions wants every decision in the index, under its title, once.
func TestDecisions(t *testing.T) {
	index := string(read(t, "docs/decisions/README.md"))
	files, err := filepath.Glob("decisions/[0-9]*.md")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d decisions, %v", len(files), err)
	}
	for _, f := range files {
		first, _, _ := strings.Cut(string(read(t, "docs/"+filepath.ToSlash(f))), "\n")
		line := "- [" + strings.TrimPrefix(first, "# ") + "](" + filepath.Base(f) + ")\n"
		if strings.Count(index, line) != 1 {
			t.Errorf("the index has %d times %q", strings.Count(index, line), line)
		}
	}
	if n := strings.Count(index, "\n- ["); n != len(files) {
		t.Errorf("the index has %d lines, there are %d decisions", n, len(files))
	}
}

// TestSizes keeps the documents to what a stranger reads in an evening.
func TestSizes(t *testing.T) {
	const most = 206 << 10
	sum := 0
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "README.md"} {
		files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			sum += int(info.Size())
		}
	}
	if sum > most {
		t.Errorf("the documents have %d bytes, %d at most", sum, most)
	}
	if n := bytes.Count(read(t, "README.md"), []byte("\n")); n > 120 {
		t.Errorf("README.md has %d lines, 120 at most", n)
	}
	if n := len(read(t, "docs/architecture.md")); n > 25_000 {
		t.Errorf("architecture.md has %d bytes, 25,000 at most", n)
	}
}

// tree is what the repository holds.
type tree struct {
	paths []string        // files and folders, slash separated, relative to the repository
	rooms map[string]bool // names of folders at the top and anywhere below internal
	tests map[string]bool // names of tests, fuzz targets, benchmarks and examples
}

var function = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)

func readTree(t *testing.T) *tree {
	t.Helper()
	r := &tree{rooms: map[string]bool{}, tests: map[string]bool{}}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p := filepath.ToSlash(strings.TrimPrefix(name, ".."+string(filepath.Separator)))
		if d.IsDir() {
			if p == ".git" || p == ".venv" || p == "bin" {
				return fs.SkipDir
			}
			if p != ".." && !strings.Contains(p, "testdata") {
				r.rooms[path.Base(p)] = true
			}
		}
		r.paths = append(r.paths, p)
		if strings.HasSuffix(p, "_test.go") {
			source, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			for _, m := range function.FindAllSubmatch(source, -1) {
				r.tests[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// holds tells whether a path of the repository ends with name, which may be a pattern.
func (r *tree) holds(name string) bool {
	name = strings.TrimSuffix(name, "/")
	depth := strings.Count(name, "/") + 1
	return slices.ContainsFunc(r.paths, func(p string) bool {
		parts := strings.Split(p, "/")
		if len(parts) < depth {
			return false
		}
		ok, err := path.Match(name, strings.Join(parts[len(parts)-depth:], "/"))
		return err == nil && ok
	})
}

// claims tells whether a word in backticks claims to be a path of the repository: a source file, or
// a path that begins with one of its folders.
func (r *tree) claims(word string) bool {
	if strings.ContainsAny(word, " <>{}()$~:=\"'…") || strings.HasPrefix(word, "/") ||
		strings.HasPrefix(word, "-") {
		return false
	}
	switch path.Ext(word) {
	case ".go", ".s", ".sh":
		return true
	}
	first, _, nested := strings.Cut(word, "/")
	// Paths of vLLM's begin with tests; our own are written python/tests.
	return nested && r.rooms[first] && first != "tests"
}

var (
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	testName = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

func TestNamesExist(t *testing.T) {
	r := readTree(t)
	for _, name := range documents(t) {
		t.Run(name, func(t *testing.T) {
			text := read(t, name)
			for _, m := range quoted.FindAllSubmatchIndex(text, -1) {
				word := string(text[m[2]:m[3]])
				line := 1 + bytes.Count(text[:m[2]], []byte("\n"))
				if test := testName.FindString(word); test != "" && !strings.Contains(word, " ") {
					if !r.tests[test] {
						t.Errorf("%s:%d: `%s`: there is no such test", name, line, word)
					}
				} else if r.claims(word) && !r.holds(word) {
					t.Errorf("%s:%d: `%s`: there is no such file or folder", name, line, word)
				}
			}
		})
	}
}

// TestFolders holds the list of rooms in tour.md.
func TestFolders(t *testing.T) {
	r := readTree(t)
	_, after, _ := strings.Cut(string(read(t, "docs/tour.md")), "\n## Rooms, from the top\n")
	_, after, _ = strings.Cut(after, "```\n")
	picture, _, closed := strings.Cut(after, "```")
	if !closed {
		t.Fatal("tour.md has no list of rooms")
	}
	seen := 0
	for line := range strings.Lines(picture) {
		// The folders stand before the first gap; what follows describes them, and so does a line
		// without any.
		left, _, _ := strings.Cut(strings.TrimSpace(line), "   ")
		for word := range strings.FieldsFuncSeq(left, func(c rune) bool {
			return c == ' ' ||
				c == ','
		}) {
			if !strings.Contains(word, "/") && path.Ext(word) != ".go" {
				continue
			}
			seen++
			if !r.holds(word) {
				t.Errorf("%q: there is no such file or folder", word)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d folders were recognised", seen)
	}
}

// TestLinks holds links between the documents, with the headings they point to.
func TestLinks(t *testing.T) {
	for _, name := range documents(t) {
		for _, m := range link.FindAllSubmatch(read(t, name), -1) {
			target, anchor, _ := strings.Cut(string(m[1]), "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(file))); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s: link to %s: there is no such heading", name, m[1])
			}
		}
	}
}

// origin is the line of a table of figures that says whose they are.
var origin = regexp.MustCompile("^`[^`]+` \\((AVX2|AVX-512)\\)\n")

// TestFigures wants under each heading the command that prints the table, and the machine.
func TestFigures(t *testing.T) {
	sections := strings.Split(string(read(t, "docs/figures.md")), "\n## ")[1:]
	if len(sections) < 10 {
		t.Fatalf("%d sections", len(sections))
	}
	for _, s := range sections {
		title, text, _ := strings.Cut(s, "\n\n")
		if !origin.MatchString(text) {
			t.Errorf("%s: %.60q names no command and machine", title, text)
		}
	}
}

// TestImages wants every picture shown somewhere.
func TestImages(t *testing.T) {
	shown := map[string]bool{}
	for _, name := range documents(t) {
		for _, m := range link.FindAllSubmatch(read(t, name), -1) {
			shown[path.Join(path.Dir(name), string(m[1]))] = true
		}
	}
	files, err := filepath.Glob("images/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d pictures, %v", len(files), err)
	}
	for _, f := range files {
		if !shown[path.Join("docs", filepath.ToSlash(f))] {
			t.Errorf("%s is in no document", f)
		}
	}
}

// anchors are the names that GitHub gives to a document's headings.
func anchors(text []byte) []string {
	var names []string
	for _, m := range heading.FindAllSubmatch(text, -1) {
		var b strings.Builder
		for _, c := range strings.ToLower(string(m[1])) {
			switch {
			case c == ' ':
				b.WriteByte('-')
			case c == '-' || c == '_' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
				b.WriteRune(c)
			}
		}
		names = append(names, b.String())
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
