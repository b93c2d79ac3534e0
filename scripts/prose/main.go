// Command prose looks for words that comments are not to have: pronouns that stand where a comment
// should name the request, the rank or the program that it means.
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	found := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); len(name) > 1 && name[0] == '.' || name == "testdata" ||
				name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".py", ".sh", ".js", ".s":
		default:
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, f := range look(path, source) {
			found++
			fmt.Println(f)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if found > 0 {
		os.Exit(1)
	}
}

var pronoun = regexp.MustCompile(`(?i)\b(nobody|whoever|somebody|anybody|whom|whomever)\b`)

// look returns what is wrong in a file, each with its place.
func look(path string, source []byte) (findings []string) {
	if bytes.Contains(source, []byte("\n// Code generated ")) || bytes.HasPrefix(source,
		[]byte("// Code generated ")) {
		return nil
	}
	report := func(line int, comment string) {
		for i, text := range strings.Split(comment, "\n") {
			if w := pronoun.FindString(text); w != "" {
				findings = append(findings,
					fmt.Sprintf("%s:%d: %q in a comment: name what it stands for", path, line+i, w))
			}
		}
	}
	if filepath.Ext(path) == ".go" {
		files := token.NewFileSet()
		file := files.AddFile(path, -1, len(source))
		var s scanner.Scanner
		s.Init(file, source, nil, scanner.ScanComments)
		for {
			at, kind, text := s.Scan()
			if kind == token.EOF {
				return findings
			}
			if kind == token.COMMENT {
				report(file.Line(at), text)
			}
		}
	}
	mark := "#"
	if ext := filepath.Ext(path); ext == ".js" || ext == ".s" {
		mark = "//"
	}
	for i, line := range strings.Split(string(source), "\n") {
		if _, comment, ok := strings.Cut(line, mark); ok {
			report(i+1, comment)
		}
	}
	return findings
}
