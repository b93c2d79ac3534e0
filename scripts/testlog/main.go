// Command testlog reads the output of go test -json and prints it for people: one line per
// package, then the tests that took longest, and last the names of the tests that failed, each with
// the end of what it printed. It exits with 1 if one did.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is a line of go test -json (go doc test2json), of a build (go help buildjson) too.
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

// tailLines is how much of a failed test's output is shown: its end says what went wrong.
const tailLines = 40

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

// failure is a test, a package or a build that failed.
type failure struct{ name, output string }

// report reads events until the end and tells whether nothing failed.
func report(in io.Reader, out io.Writer) (bool, error) {
	type key struct{ pkg, test string }
	outputs := map[key]*strings.Builder{}
	failedIn := map[string]int{}
	var failures []failure
	var slow slowest
	skipped := map[string]int{}
	packages := 0
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				// What go itself says, such as that a package cannot be found.
				failures = append(failures, failure{"go test", string(line)})
				continue
			}
			k := key{e.Package, e.Test}
			if e.Action == "pass" || e.Action == "fail" {
				slow.add(&e)
			}
			switch e.Action {
			case "output", "build-output":
				if e.Action == "build-output" {
					k = key{pkg: e.ImportPath}
				}
				if outputs[k] == nil {
					outputs[k] = &strings.Builder{}
				}
				outputs[k].WriteString(e.Output)
			case "build-fail":
				failures = append(failures, failure{"build of " + e.ImportPath,
					outputs[key{pkg: e.ImportPath}].String()})
			case "skip":
				if e.Test != "" {
					skipped[e.Package]++
				} else {
					packages++ // without tests
				}
				delete(outputs, k)
			case "pass":
				delete(outputs, k)
				if e.Test == "" {
					packages++
					note := ""
					if n := skipped[e.Package]; n > 0 {
						note = fmt.Sprintf("  (%d skipped)", n)
					}
					fmt.Fprintf(out, "ok    %6.1fs  %s%s\n", e.Elapsed, e.Package, note)
				}
			case "fail":
				text := ""
				if outputs[k] != nil {
					text = outputs[k].String()
				}
				switch {
				case e.Test != "" && failedIn[e.Package+"."+e.Test] > 0 &&
					!strings.Contains(text, "_test.go:"):
					// Its parts have failed and are shown; it has nothing to add.
				case e.Test != "":
					failures = append(failures, failure{e.Package + "  " + e.Test, text})
				case failedIn[e.Package] == 0 && e.FailedBuild == "":
					failures = append(failures, failure{e.Package, text})
				}
				if e.Test == "" {
					fmt.Fprintf(out, "FAIL  %6.1fs  %s\n", e.Elapsed, e.Package)
					continue
				}
				failedIn[e.Package]++
				for parent := e.Test; strings.Contains(parent, "/"); {
					parent = parent[:strings.LastIndexByte(parent, '/')]
					failedIn[e.Package+"."+parent]++
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	if packages == 0 && len(failures) == 0 {
		failures = append(failures, failure{"go test", "no package was tested: see above"})
	}
	slow.print(out)
	for _, f := range failures {
		fmt.Fprintf(out, "\n=== %s\n%s", f.name, tail(f.output))
	}
	if len(failures) > 0 {
		fmt.Fprintf(out, "\nfailed:\n")
		for _, f := range failures {
			fmt.Fprintf(out, "  %s\n", f.name)
		}
	}
	return len(failures) == 0, nil
}

// tail is the end of a text, with the number of lines that are left out.
func tail(text string) string {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n")+"\n", "\n")
	if n := len(lines) - 1 - tailLines; n > 0 {
		return fmt.Sprintf("(%d lines before)\n%s", n, strings.Join(lines[n:], ""))
	}
	return strings.Join(lines, "")
}
