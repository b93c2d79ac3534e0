package chattemplate

import (
	"unicode"
)

// testFunc is a test: the right side of is.
type testFunc func(run *budget, v Value, a *callArgs) (bool, error)

// tests are set in init, because some of them look up others.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"boolean":     plainTest(func(v Value) bool { return v.kind == kindBool }),
		"callable":    plainTest(callable),
		"defined":     plainTest(func(v Value) bool { return !v.IsUndefined() }),
		"undefined":   plainTest(Value.IsUndefined),
		"divisibleby": testDivisibleBy,
		"escaped":     plainTest(func(v Value) bool { return v.markup }),
		"even":        parityTest(0),
		"odd":         parityTest(1),
		"false":       plainTest(func(v Value) bool { return v.kind == kindBool && v.num == 0 }),
		"true":        plainTest(func(v Value) bool { return v.kind == kindBool && v.num != 0 }),
		"filter":      plainTest(func(v Value) bool { return v.kind == kindString && filters[v.str] != nil }),
		"test":        plainTest(func(v Value) bool { return v.kind == kindString && tests[v.str] != nil }),
		"float":       plainTest(func(v Value) bool { return v.kind == kindFloat }),
		"integer":     plainTest(func(v Value) bool { return v.kind == kindInt || v.kind == kindBig }),
		"number":      plainTest(isNumber),
		"iterable":    plainTest(iterable),
		"lower":       caseTest(unicode.IsLower),
		"upper":       caseTest(unicode.IsUpper),
		"mapping":     plainTest(func(v Value) bool { return v.kind == kindMap }),
		"none":        plainTest(Value.IsNone),
		"sameas":      testSameAs,
		"sequence":    plainTest(sequence),
		"string":      plainTest(Value.isString),
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
	return func(_ *budget, v Value, a *callArgs) (bool, error) { return f(v), a.bind(nil, 0) }
}

func callable(v Value) bool {
	switch v.kind {
	case kindFunc, kindMacro, kindJoiner, kindLoop, kindUndefined, kindMissing:
		// Undefined has a __call__, which raises.
		return true
	}
	return false
}

func sequence(v Value) bool {
	switch v.kind {
	case kindString, kindList, kindTuple, kindMap, kindRange, kindUndefined, kindMissing:
		return true
	}
	return false
}

func compareTest(op string) testFunc {
	return func(run *budget, v Value, a *callArgs) (bool, error) {
		var p [1]Value
		if err := a.bind(p[:], 1, "other"); err != nil {
			return false, err
		}
		return run.compare(op, v, p[0])
	}
}

func caseTest(want func(rune) bool) testFunc {
	return func(run *budget, v Value, a *callArgs) (bool, error) {
		v, err := filterString(run, v, a)
		if err == nil {
			err = run.work(len(v.str))
		}
		return allCased(v.str, want), err
	}
}

func divisible(run *budget, v, by Value) (bool, error) {
	r, err := Arith(run, "%", v, by)
	if err != nil {
		return false, err
	}
	return run.equal(r, Int(0))
}

func testDivisibleBy(run *budget, v Value, a *callArgs) (bool, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "num"); err != nil {
		return false, err
	}
	return divisible(run, v, p[0])
}

func parityTest(rest int64) testFunc {
	return func(run *budget, v Value, a *callArgs) (bool, error) {
		if err := a.bind(nil, 0); err != nil {
			return false, err
		}
		r, err := Arith(run, "%", v, Int(2))
		if err != nil {
			return false, err
		}
		return run.equal(r, Int(rest))
	}
}

// testSameAs is Python's is, as far as templates can depend on it: singletons, and the same object.
func testSameAs(run *budget, v Value, a *callArgs) (bool, error) {
	var p [1]Value
	if err := a.bind(p[:], 1, "other"); err != nil {
		return false, err
	}
	other := p[0]
	if v.kind != other.kind {
		return false, nil
	}
	switch v.kind {
	case kindNone:
		return true, nil
	case kindBool, kindInt, kindBig, kindFloat, kindString:
		return run.equal(v, other)
	}
	return v.ref != nil && v.ref == other.ref, nil
}
