package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxColumns is the length of the longest line, in which a tab is tabColumns wide.
const maxColumns, tabColumns = 100, 4

// longLines returns the lines of a file that have too many columns, each with its place. Lines that
// no line break could shorten are left alone: those of raw strings and here-documents, whose breaks
// are part of the value, and those of a single word, such as an address.
func longLines(path string, source []byte) (findings []string) {
	var data map[int]bool
	lines := strings.Split(string(source), "\n")
	for i, line := range lines {
		n := columns(line)
		if n <= maxColumns || oneWord(line) {
			continue
		}
		if data == nil {
			data = dataLines(path, source, lines)
		}
		if !data[i+1] {
			findings = append(findings,
				fmt.Sprintf("%s:%d: %d columns, %d are allowed", path, i+1, n, maxColumns))
		}
	}
	return findings
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
}

// oneWord reports whether a line has nowhere to be broken: one word, in a comment or not, or a
// directive of Go's, which has to stand on one line.
func oneWord(line string) bool {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "//go:") {
		return true
	}
	return len(strings.Fields(strings.TrimLeft(line, "/#"))) <= 1
}

// dataLines returns the numbers of the lines whose breaks are part of a value.
func dataLines(path string, source []byte, lines []string) map[int]bool {
	switch filepath.Ext(path) {
	case ".go":
		return rawStrings(source)
	case ".sh":
		return hereDocuments(lines)
	}
	return map[int]bool{}
}

// rawStrings returns the numbers of the lines on which some part of a raw string stands.
func rawStrings(source []byte) map[int]bool {
	data := map[int]bool{}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return data
		}
		if kind != token.STRING || text[0] != '`' {
			continue
		}
		first := file.Line(at)
		for i := range strings.Count(text, "\n") + 1 {
			data[first+i] = true
		}
	}
}

var hereDocument = regexp.MustCompile(`(?:^|[^<])<<-?["'\\]?([A-Za-z_]\w*)`)

// hereDocuments returns the numbers of the lines between the first and the last of a here-document.
func hereDocuments(lines []string) map[int]bool {
	data := map[int]bool{}
	for i := 0; i < len(lines); i++ {
		begin := hereDocument.FindStringSubmatch(lines[i])
		if begin == nil {
			continue
		}
		for i++; i < len(lines) && strings.TrimLeft(lines[i], "\t") != begin[1]; i++ {
			data[i+1] = true
		}
	}
	return data
}
