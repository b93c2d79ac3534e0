// Command figures writes docs/figures.md, one section for each file of docs/figures, in the order
// of their names.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(repository string) error {
	text, err := page(repository)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repository, "docs", "figures.md"), text, 0o644)
}

// figures are one file: a table, the command that prints it, and the machine that it was of.
type figures struct {
	Title   string     `json:"title"`
	Machine string     `json:"machine"`
	Command string     `json:"command"`
	About   string     `json:"about"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

const head = `# Figures

Each table stands with the command that prints it and the machine that it was of: two cores of an AMD EPYC, one with AVX-512
BF16, or an older one (Zen 3) with AVX2, both virtual and shared with others. What is compared was measured in the same run,
in turn; figures are medians, and worth as much as such machines allow. ` + "`go run ./scripts/figures`" + ` writes this page
from the files of ` + "`docs/figures`" + `.
`

// page is docs/figures.md.
func page(repository string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(repository, "docs", "figures", "*.json"))
	if err != nil {
		return nil, err
	}
	b := bytes.NewBufferString(head)
	for _, name := range files {
		f, err := read(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		f.write(b)
	}
	return b.Bytes(), nil
}

func read(name string) (*figures, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	f := &figures{}
	if err := d.Decode(f); err != nil {
		return nil, err
	}
	if f.Title == "" || f.Machine == "" || f.Command == "" || len(f.Rows) == 0 {
		return nil, fmt.Errorf("title, machine, command and rows are needed")
	}
	for i, row := range f.Rows {
		if len(row) != len(f.Columns) {
			return nil, fmt.Errorf("row %d has %d cells, there are %d columns", i, len(row),
				len(f.Columns))
		}
	}
	return f, nil
}

func (f *figures) write(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## %s\n\n`%s` (%s)\n\n", f.Title, f.Command, f.Machine)
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(f.Columns)
	b.WriteString(strings.Repeat("|---", len(f.Columns)) + "|\n")
	for _, row := range f.Rows {
		line(row)
	}
	if f.About != "" {
		fmt.Fprintf(b, "\n%s\n", f.About)
	}
}
