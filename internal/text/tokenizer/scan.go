package tokenizer

import "strings"

// The patterns for which there is a hand-written scanner, in the exact text that published files
// use. The scanner is several times as fast as a backtracking engine and knows the letters of
// Unicode 16.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternCL100K = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// cl100k_base of tiktoken 0.8 and later, which is not quite patternCL100K (see endSpace).
	patternOpenAI = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`
)

// scanner cuts text into the pieces that one of the known patterns matches. Those patterns match
// every character, so consecutive matches cover the whole text.
type scanner struct {
	classes   *classTable
	gpt2      bool
	maxDigits int
	// endSpace says that white space at the end of the text is one piece, line breaks or not, as in
	// today's tiktoken.
	endSpace bool
	cased    *casedRule
	cases    *classTable // where cased is set
}

// scannerFor returns the scanner for a pattern, or nil when the pattern is not one of the known
// ones.
func scannerFor(pattern string) *scanner {
	switch pattern {
	case patternGPT2:
		return &scanner{classes: planeClasses(), gpt2: true}
	case patternCL100K:
		return &scanner{classes: planeClasses(), maxDigits: 3}
	case patternQwen2:
		return &scanner{classes: planeClasses(), maxDigits: 1}
	case patternOpenAI:
		return &scanner{classes: planeClasses(), maxDigits: 3, endSpace: true}
	case patternO200K:
		return casedScanner(3, casedRule{contractions: true, slashes: true})
	case patternTekken:
		return casedScanner(1, casedRule{slashes: true})
	case patternKimi:
		return casedScanner(3, casedRule{han: true, contractions: true})
	}
	return nil
}

func casedScanner(maxDigits int, rule casedRule) *scanner {
	sc := &scanner{classes: planeClasses(), maxDigits: maxDigits, cased: &rule, cases: planeCases()}
	if rule.han {
		sc.cases = planeCasesHan()
	}
	return sc
}

// next returns the end of the piece that begins at i < len(s).
func (sc *scanner) next(s string, i int) int {
	if sc.gpt2 {
		return sc.nextGPT2(s, i)
	}
	if sc.cased != nil {
		return sc.nextCased(s, i)
	}
	return sc.nextCL100K(s, i)
}

func (sc *scanner) nextGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	class, size := sc.classes.at(s, i)
	run, at := class, i
	if s[i] == ' ' && i+1 < len(s) {
		at = i + 1
		run, size = sc.classes.at(s, at)
	}
	if run != classSpace {
		return sc.runEnd(s, at+size, run)
	}
	return sc.spaceEnd(s, i)
}

func (sc *scanner) nextCL100K(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	class, size := sc.classes.at(s, i)
	switch {
	case class == classLetter:
		return sc.runEnd(s, i+size, classLetter)
	case class == classNumber:
		return sc.digitsEnd(s, i+size)
	case s[i] != '\r' && s[i] != '\n' && i+size < len(s):
		if c, w := sc.classes.at(s, i+size); c == classLetter {
			return sc.runEnd(s, i+size+w, classLetter)
		}
	}
	at := i
	if s[i] == ' ' && i+1 < len(s) {
		at = i + 1
		class, size = sc.classes.at(s, at)
	}
	if class == classOther {
		end := sc.runEnd(s, at+size, classOther)
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	if sc.endSpace && sc.runEnd(s, i, classSpace) == len(s) {
		return len(s)
	}
	if end := sc.newlineEnd(s, i); end > i {
		return end
	}
	return sc.spaceEnd(s, i)
}

// digitsEnd returns the end of the number that goes on at i after its first digit.
func (sc *scanner) digitsEnd(s string, i int) int {
	for n := 1; n < sc.maxDigits && i < len(s); n++ {
		c, w := sc.classes.at(s, i)
		if c != classNumber {
			break
		}
		i += w
	}
	return i
}

// runEnd returns the end of the run of characters of one class that goes on at i.
func (sc *scanner) runEnd(s string, i int, class uint8) int {
	for i < len(s) {
		c, n := sc.classes.at(s, i)
		if c != class {
			break
		}
		i += n
	}
	return i
}

// newlineEnd matches \s*[\r\n]+ at i: it returns the end of the last line break in the run of white
// space, or i when there is none.
func (sc *scanner) newlineEnd(s string, i int) int {
	end := i
	for i < len(s) {
		c, n := sc.classes.at(s, i)
		if c != classSpace {
			break
		}
		i += n
		if n == 1 && (s[i-1] == '\r' || s[i-1] == '\n') {
			end = i
		}
	}
	return end
}

// spaceEnd matches \s+(?!\S)|\s+ at i: the run of white space, less its last character when
// something follows it and it is longer than one.
func (sc *scanner) spaceEnd(s string, i int) int {
	end, last := i, i
	for end < len(s) {
		c, n := sc.classes.at(s, end)
		if c != classSpace {
			break
		}
		last = end
		end += n
	}
	if end < len(s) && last > i {
		return last
	}
	return end
}

// contraction returns the length of the English contraction ending at the start of s (what follows
// an apostrophe), or 0. With fold it ignores case; U+017F (long s) then folds to s.
func contraction(s string, fold bool) int {
	at := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if c := s[i]; fold && c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return s[i]
	}
	switch at(0) {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if at(1) == 'e' {
			return 2
		}
	case 'l':
		if at(1) == 'l' {
			return 2
		}
	}
	if fold && strings.HasPrefix(s, "ſ") {
		return len("ſ")
	}
	return 0
}
