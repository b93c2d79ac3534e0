// Command prose reads the source files that git tracks. It looks for lines that are too long, and
// for words that comments are not to have: pronouns that stand where a comment should name the
// request, the rank or the program that it means.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	found, err := lookAll()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if found > 0 {
		os.Exit(1)
	}
}

// lookAll prints what is wrong in the tracked files below the working directory, and counts it.
func lookAll() (found int, err error) {
	list, err := exec.Command("git", "ls-files", "-z", "*.go", "*.py", "*.sh", "*.js", "*.s",
		":!web/vendor").Output()
	if err != nil {
		return 0, fmt.Errorf("git ls-files: %w", err)
	}
	for path := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		source, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and git does not know it yet
		}
		if err != nil {
			return found, err
		}
		for _, f := range look(path, source) {
			found++
			fmt.Println(f)
		}
	}
	return found, nil
}

var pronoun = regexp.MustCompile(`(?i)\b(nobody|whoever|somebody|anybody|whom|whomever)\b`)

// look returns what is wrong in a file, each with its place.
func look(path string, source []byte) []string {
	if generated(source) {
		return nil
	}
	return append(pronouns(path, source), longLines(path, source)...)
}

// generated reports whether a program wrote the file, whose text is then that program's.
func generated(source []byte) bool {
	const mark = "// Code generated "
	return bytes.HasPrefix(source, []byte(mark)) || bytes.Contains(source, []byte("\n"+mark))
}

// pronouns returns the pronouns in the comments of a file.
func pronouns(path string, source []byte) (findings []string) {
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
