package ptx

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Mutant is a module with one defect, of the kinds that are made in kernels: a test of a kernel
// should fail with it.
type Mutant struct {
	// Name says what was changed, and Line where, from 1.
	Name string
	Line int
	// lines are those of the module, changed what Line has instead.
	lines   [][]byte
	changed []byte
}

// Source is the whole text with the change; lines have the same numbers as before.
func (m *Mutant) Source() []byte {
	lines := slices.Clone(m.lines)
	lines[m.Line-1] = m.changed
	return bytes.Join(lines, []byte("\n"))
}

// mutation is a kind of defect: rewrite returns the new text of an instruction.
type mutation struct {
	name    string
	find    *regexp.Regexp
	rewrite func(parts [][]byte) []byte
}

func dropped([][]byte) []byte { return nil }

// mutations lists the defects; the pattern must match an instruction with its semicolon.
func mutations() []mutation {
	return []mutation{
		{"drop", regexp.MustCompile(`\b(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive|warp\.sync)\b[^;]*;`),
			dropped},
		{"drop", regexp.MustCompile(`\bcp\.async\.(?:bulk\.)?(?:commit_group|wait_all)\b[^;]*;`),
			dropped},
		{"weaken", regexp.MustCompile(`\b((?:cp\.async|cp\.async\.bulk|wgmma)\.wait_group` +
			`(?:\.\w+)*\s+)(\d+)\s*;`), weaken},
		{"drop", regexp.MustCompile(`\b(?:wgmma\.fence|membar|fence)\.[^;]*;`), dropped},
		{"relax", regexp.MustCompile(`\b((?:ld|st|atom|red)\.)(?:acquire|release|acq_rel)(\.[^;]*;)`),
			func(p [][]byte) []byte { return join(p[1], []byte("relaxed"), p[2]) }},
		{"narrow", regexp.MustCompile(`\b((?:ld|st|atom|red)\.(?:acquire|release|acq_rel))\.sys` +
			`(\.[^;]*;)`), func(p [][]byte) []byte { return join(p[1], []byte(".gpu"), p[2]) }},
		{"transpose", regexp.MustCompile(`\b((?:ld|st)matrix\.sync\.aligned\.m8n8\.x[124])(\.trans)?` +
			`(\.[^;]*;)`), transpose},
		{"swap the operands of", regexp.MustCompile(`\b(cvt\.r[nz](?:\.\w+)*\.b?f16x2\.f32\s+[^,;]+,` +
			`)([^,;]+),([^,;]+);`), func(p [][]byte) []byte {
			return join(p[1], p[3], []byte(","), p[2], []byte(";"))
		}},
		{"drop", regexp.MustCompile(`\bmbarrier\.(?:arrive|expect_tx|complete_tx)\b[^;]*;`), dropped},
		{"do not wait at", regexp.MustCompile(`\bmbarrier\.(?:try|test)_wait(?:\.[\w:]+)*\s+` +
			`([^,;]+),[^;]*;`), func(p [][]byte) []byte {
			return join([]byte("setp.eq.u32 "), p[1], []byte(", 0, 0;"))
		}},
		{"drop", regexp.MustCompile(`\bwgmma\.commit_group\b[^;]*;`), dropped},
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func weaken(p [][]byte) []byte {
	n, err := strconv.Atoi(string(p[2]))
	if err != nil {
		return nil
	}
	return fmt.Appendf(nil, "%s%d;", p[1], n+1)
}

func transpose(p [][]byte) []byte {
	if len(p[2]) > 0 {
		return join(p[1], p[3])
	}
	return join(p[1], []byte(".trans"), p[3])
}

// Mutants are all the mutants of a module: each barrier, fence and commit dropped, each wait for
// groups weakened by one, ordered accesses relaxed, or of the device's scope and not the system's,
// matrices transposed, operands of packed conversions swapped. A few may do what the original does,
// where nothing depends on the instruction.
func Mutants(src []byte) []Mutant {
	var all []Mutant
	kinds := mutations()
	lines := bytes.Split(src, []byte("\n"))
	for i, line := range lines {
		code, _, _ := bytes.Cut(line, []byte("//"))
		for _, kind := range kinds {
			for _, at := range kind.find.FindAllSubmatchIndex(code, -1) {
				var parts [][]byte
				for k := 0; k < len(at); k += 2 {
					if at[k] < 0 {
						parts = append(parts, nil)
						continue
					}
					parts = append(parts, code[at[k]:at[k+1]])
				}
				changed := join(line[:at[0]], kind.rewrite(parts), line[at[1]:])
				if rest := bytes.TrimSpace(changed); len(rest) > 0 && rest[0] == '@' &&
					!bytes.Contains(rest, []byte(" ")) {
					changed = nil // the guard of what was dropped
				}
				all = append(all, Mutant{fmt.Sprintf("line %d: %s %s", i+1, kind.name,
					bytes.TrimSpace(parts[0])), i + 1, lines, changed})
			}
		}
	}
	return all
}
