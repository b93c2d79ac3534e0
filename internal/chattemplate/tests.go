package chattemplate

import (
	"unicode"
)

// testFunc is a test: the right side of is.
type testFunc func(run *Budget, v Value, a *Args) (bool, error)

// tests are set in init, because some of them look up others.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"boolean":     plainTest(func(v Value) bool { return v.Kind == KindBool }),
		"callable":    plainTest(callable),
		"defined":     plainTest(func(v Value) bool { return !v.IsUndefined() }),
		"undefined":   plainTest(Value.IsUndefined),
		"divisibleby": testDivisibleBy,
		"escaped":     plainTest(func(v Value) bool { return v.Markup }),
		"even":        parityTest(0),
		"odd":         parityTest(1),
		"false":       plainTest(func(v Value) bool { return v.Kind == KindBool && v.Num == 0 }),
		"true":        plainTest(func(v Value) bool { return v.Kind == KindBool && v.Num != 0 }),
		"filter":      plainTest(func(v Value) bool { return v.Kind == KindString && filters[v.Text] != nil }),
		"test":        plainTest(func(v Value) bool { return v.Kind == KindString && tests[v.Text] != nil }),
		"float":       plainTest(func(v Value) bool { return v.Kind == KindFloat }),
		"integer":     plainTest(func(v Value) bool { return v.Kind == KindInt || v.Kind == KindBig }),
		"number":      plainTest(IsNumber),
		"iterable":    plainTest(Iterable),
		"lower":       caseTest(unicode.IsLower),
		"upper":       caseTest(unicode.IsUpper),
		"mapping":     plainTest(func(v Value) bool { return v.Kind == KindMap }),
		"none":        plainTest(Value.IsNone),
		"sameas":      testSameAs,
		"sequence":    plainTest(sequence),
		"string":      plainTest(Value.IsString),
	}
	for name, op := range map[string]string{
		"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=",
		"lt": "<", "lessthan": "<", "<": "<", "le": "<=", "<=": "<=",
		"gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=", "in": "in",
	} {
		tests[name] = compareTest(op)
	}
}

func plainTest(f func(Value) bool) testFunc {
	return func(_ *Budget, v Value, a *Args) (bool, error) { return f(v), a.Bind(nil, 0) }
}

func callable(v Value) bool {
	switch v.Kind {
	case KindFunc, KindMacro, KindJoiner, KindLoop, KindUndefined, KindMissing:
		// Undefined has a __call__, which raises.
		return true
	}
	return false
}

func sequence(v Value) bool {
	switch v.Kind {
	case KindString, KindList, KindTuple, KindMap, KindRange, KindUndefined, KindMissing:
		return true
	}
	return false
}

func compareTest(op string) testFunc {
	return func(run *Budget, v Value, a *Args) (bool, error) {
		var p [1]Value
		if err := a.Bind(p[:], 1, "other"); err != nil {
			return false, err
		}
		return run.Compare(op, v, p[0])
	}
}

func caseTest(want func(rune) bool) testFunc {
	return func(run *Budget, v Value, a *Args) (bool, error) {
		v, err := filterString(run, v, a)
		if err == nil {
			err = run.Work(len(v.Text))
		}
		return AllCased(v.Text, want), err
	}
}

func divisible(run *Budget, v, by Value) (bool, error) {
	r, err := Arith(run, "%", v, by)
	if err != nil {
		return false, err
	}
	return run.Equal(r, Int(0))
}

func testDivisibleBy(run *Budget, v Value, a *Args) (bool, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "num"); err != nil {
		return false, err
	}
	return divisible(run, v, p[0])
}

func parityTest(rest int64) testFunc {
	return func(run *Budget, v Value, a *Args) (bool, error) {
		if err := a.Bind(nil, 0); err != nil {
			return false, err
		}
		r, err := Arith(run, "%", v, Int(2))
		if err != nil {
			return false, err
		}
		return run.Equal(r, Int(rest))
	}
}

// testSameAs is Python's is, as far as templates can depend on it: singletons, and the same object.
func testSameAs(run *Budget, v Value, a *Args) (bool, error) {
	var p [1]Value
	if err := a.Bind(p[:], 1, "other"); err != nil {
		return false, err
	}
	other := p[0]
	if v.Kind != other.Kind {
		return false, nil
	}
	switch v.Kind {
	case KindNone:
		return true, nil
	case KindBool, KindInt, KindBig, KindFloat, KindString:
		return run.Equal(v, other)
	}
	return v.Ref != nil && v.Ref == other.Ref, nil
}
