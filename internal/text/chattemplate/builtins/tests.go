package builtins

import (
	"unicode"

	"github.com/eagleray/eagleray/internal/text/chattemplate/ops"
	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// tests are set in init, because some of them look up others.
var tests map[string]values.Test

// Test returns the test of that name, or nil.
func Test(name string) values.Test { return tests[name] }

func init() {
	tests = map[string]values.Test{
		"boolean":     plainTest(func(v values.Value) bool { return v.Kind == values.KindBool }),
		"callable":    plainTest(callable),
		"defined":     plainTest(func(v values.Value) bool { return !v.IsUndefined() }),
		"undefined":   plainTest(values.Value.IsUndefined),
		"divisibleby": testDivisibleBy,
		"escaped":     plainTest(func(v values.Value) bool { return v.Markup }),
		"even":        parityTest(0),
		"odd":         parityTest(1),
		"false": plainTest(func(v values.Value) bool {
			return v.Kind == values.KindBool &&
				v.Num == 0
		}),
		"true": plainTest(func(v values.Value) bool {
			return v.Kind == values.KindBool &&
				v.Num != 0
		}),
		"filter": plainTest(func(v values.Value) bool {
			return v.Kind == values.KindString &&
				filters[v.Text] != nil
		}),
		"test": plainTest(func(v values.Value) bool {
			return v.Kind == values.KindString &&
				tests[v.Text] != nil
		}),
		"float": plainTest(func(v values.Value) bool { return v.Kind == values.KindFloat }),
		"integer": plainTest(func(v values.Value) bool {
			return v.Kind == values.KindInt ||
				v.Kind == values.KindBig
		}),
		"number":   plainTest(values.IsNumber),
		"iterable": plainTest(values.Iterable),
		"lower":    caseTest(unicode.IsLower),
		"upper":    caseTest(unicode.IsUpper),
		"mapping":  plainTest(func(v values.Value) bool { return v.Kind == values.KindMap }),
		"none":     plainTest(values.Value.IsNone),
		"sameas":   testSameAs,
		"sequence": plainTest(sequence),
		"string":   plainTest(values.Value.IsString),
	}
	for name, op := range map[string]string{
		"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=",
		"lt": "<", "lessthan": "<", "<": "<", "le": "<=", "<=": "<=",
		"gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=", "in": "in",
	} {
		tests[name] = compareTest(op)
	}
}

func plainTest(f func(values.Value) bool) values.Test {
	return func(_ *values.Budget, v values.Value, a *values.Args) (bool, error) {
		return f(v),
			a.Bind(nil, 0)
	}
}

func callable(v values.Value) bool {
	switch v.Kind {
	case values.KindFunc, values.KindMacro, values.KindJoiner, values.KindLoop,
		values.KindUndefined, values.KindMissing:
		// Undefined has a __call__, which raises.
		return true
	}
	return false
}

func sequence(v values.Value) bool {
	switch v.Kind {
	case values.KindString, values.KindList, values.KindTuple, values.KindMap, values.KindRange,
		values.KindUndefined, values.KindMissing:
		return true
	}
	return false
}

func compareTest(op string) values.Test {
	return func(run *values.Budget, v values.Value, a *values.Args) (bool, error) {
		var p [1]values.Value
		if err := a.Bind(p[:], 1, "other"); err != nil {
			return false, err
		}
		return run.Compare(op, v, p[0])
	}
}

func caseTest(want func(rune) bool) values.Test {
	return func(run *values.Budget, v values.Value, a *values.Args) (bool, error) {
		v, err := filterString(run, v, a)
		if err == nil {
			err = run.Work(len(v.Text))
		}
		return pytext.AllCased(v.Text, want), err
	}
}

func divisible(run *values.Budget, v, by values.Value) (bool, error) {
	r, err := ops.Arith(run, "%", v, by)
	if err != nil {
		return false, err
	}
	return run.Equal(r, values.Int(0))
}

func testDivisibleBy(run *values.Budget, v values.Value, a *values.Args) (bool, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "num"); err != nil {
		return false, err
	}
	return divisible(run, v, p[0])
}

func parityTest(rest int64) values.Test {
	return func(run *values.Budget, v values.Value, a *values.Args) (bool, error) {
		if err := a.Bind(nil, 0); err != nil {
			return false, err
		}
		r, err := ops.Arith(run, "%", v, values.Int(2))
		if err != nil {
			return false, err
		}
		return run.Equal(r, values.Int(rest))
	}
}

// testSameAs is Python's is, as far as templates can depend on it: singletons, and the same object.
func testSameAs(run *values.Budget, v values.Value, a *values.Args) (bool, error) {
	var p [1]values.Value
	if err := a.Bind(p[:], 1, "other"); err != nil {
		return false, err
	}
	other := p[0]
	if v.Kind != other.Kind {
		return false, nil
	}
	switch v.Kind {
	case values.KindNone:
		return true, nil
	case values.KindBool, values.KindInt, values.KindBig, values.KindFloat, values.KindString:
		return run.Equal(v, other)
	}
	return v.Ref != nil && v.Ref == other.Ref, nil
}
