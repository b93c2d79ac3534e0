package main

import (
	"fmt"
	"strings"
	"testing"
)

// events is the output of go test -json for one package.
func events(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("{" + l + "}\n")
	}
	return b.String()
}

func TestReport(t *testing.T) {
	var long []string
	for i := range 100 {
		long = append(long,
			fmt.Sprintf(`"Action":"output","Package":"p","Test":"TestLong","Output":"line %d\n"`,
				i))
	}
	for _, c := range []struct {
		name, in string
		ok       bool
		want     []string
		not      []string
	}{
		{"passed", events(`"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"`,
			`"Action":"pass","Package":"p","Test":"TestA"`,
			`"Action":"skip","Package":"p","Test":"TestB"`,
			`"Action":"pass","Package":"p","Elapsed":1.25`), true,
			[]string{"ok       1.2s  p  (1 skipped)"}, []string{"noise"}},
		{"part failed",
			events(`"Action":"output","Package":"p","Test":"TestA/x","Output":"a_test.go:3: why\n"`,
				`"Action":"fail","Package":"p","Test":"TestA/x"`,
				`"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA\n"`,
				`"Action":"fail","Package":"p","Test":"TestA"`,
				`"Action":"fail","Package":"p","Elapsed":2`), false,
			[]string{"=== p  TestA/x\na_test.go:3: why\n", "failed:\n  p  TestA/x\n"},
			[]string{"=== p  TestA\n"}},
		{"long", events(append(long, `"Action":"fail","Package":"p","Test":"TestLong"`)...), false,
			[]string{"(60 lines before)\nline 60\n", "line 99\n"}, []string{"line 59"}},
		{"crash", events(`"Action":"output","Package":"p","Output":"panic: at the start\n"`,
			`"Action":"fail","Package":"p"`), false, []string{"=== p\npanic: at the start\n"}, nil},
		{"build", events(
			`"Action":"build-output","ImportPath":"p [p.test]","Output":"p.go:1: wrong\n"`,
			`"Action":"build-fail","ImportPath":"p [p.test]"`,
			`"Action":"fail","Package":"p","FailedBuild":"p [p.test]"`),
			false, []string{"=== build of p [p.test]\np.go:1: wrong\n"}, []string{"=== p\n"}},
		{"longest", events(`"Action":"pass","Package":"p","Test":"TestA","Elapsed":1.5`,
			`"Action":"pass","Package":"p","Test":"TestB/x","Elapsed":9`,
			`"Action":"pass","Package":"p","Test":"TestB","Elapsed":9.25`,
			`"Action":"pass","Package":"p","Test":"TestC","Elapsed":0.5`,
			`"Action":"pass","Package":"p","Elapsed":11`), true,
			[]string{"\nlongest:\n     9.2s  p  TestB\n     1.5s  p  TestA\n"},
			[]string{"TestB/x", "TestC"}},
		{"nothing", "", false, []string{"no package was tested"}, nil},
		{"not JSON", "go: no such package\n", false, []string{"go: no such package"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			ok, err := report(strings.NewReader(c.in), &out)
			if ok != c.ok || err != nil {
				t.Errorf("ok %v, %v", ok, err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s\nlacks %q", out.String(), want)
				}
			}
			for _, not := range c.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("%s\nhas %q", out.String(), not)
				}
			}
		})
	}
}
