package chattemplate

import (
	"math"
	"math/big"
	"strings"
)

// compare evaluates a comparison operator.
func (run *budget) compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return run.equal(a, b)
	case "!=":
		eq, err := run.equal(a, b)
		return !eq, err
	case "in":
		return run.contains(b, a)
	case "not in":
		in, err := run.contains(b, a)
		return !in, err
	}
	return run.ordered(op, a, b, 0)
}

// equal is Python's ==.
func (run *budget) equal(a, b Value) (bool, error) { return run.equalDeep(a, b, 0) }

func (run *budget) equalDeep(a, b Value, depth int) (bool, error) {
	if err := run.tick(); err != nil {
		return false, err
	}
	if depth > maxValueDepth {
		return false, errNesting()
	}
	if isNumber(a) && isNumber(b) {
		c, ok := compareNumbers(a, b)
		return ok && c == 0, nil
	}
	if a.IsUndefined() || b.IsUndefined() {
		return a.IsUndefined() && b.IsUndefined(), nil
	}
	if a.kind != b.kind {
		return false, nil
	}
	switch a.kind {
	case kindNone:
		return true, nil
	case kindString:
		if len(a.str) != len(b.str) {
			return false, nil
		}
		return a.str == b.str, run.work(len(a.str))
	case kindList, kindTuple:
		x, y := a.items(), b.items()
		if len(x) != len(y) {
			return false, nil
		}
		for i := range x {
			if eq, err := run.equalDeep(x[i], y[i], depth+1); err != nil || !eq {
				return false, err
			}
		}
		return true, nil
	case kindMap:
		return run.equalMaps(a.mapping(), b.mapping(), depth)
	case kindKeys, kindItems:
		if a.mapping().Len() != b.mapping().Len() {
			return false, nil
		}
		return run.equalMaps(a.mapping(), b.mapping(), depth)
	case kindRange:
		x, y := a.ref.(*rangeObject), b.ref.(*rangeObject)
		return x.n == y.n && (x.n == 0 || x.start == y.start && (x.n == 1 || x.step == y.step)), nil
	}
	return a.ref == b.ref, nil
}

func (run *budget) equalMaps(a, b *Map, depth int) (bool, error) {
	if a.Len() != b.Len() {
		return false, nil
	}
	for _, e := range a.entries {
		i, err := b.find(e.key)
		if err != nil {
			return false, err
		}
		if i < 0 {
			return false, run.tick()
		}
		if eq, err := run.equalDeep(e.value, b.entries[i].value, depth+1); err != nil || !eq {
			return false, err
		}
	}
	return true, nil
}

// compareNumbers orders two numbers exactly; ok is false if one is not a number (NaN).
func compareNumbers(a, b Value) (c int, ok bool) {
	const exact = 1 << 53
	small := func(v Value) bool {
		return (v.kind == kindInt || v.kind == kindBool) && v.num >= -exact && v.num <= exact
	}
	if isInteger(a) && isInteger(b) {
		if a.kind != kindBig && b.kind != kindBig {
			return order(a.num, b.num), true
		}
		return bigOf(a).Cmp(bigOf(b)), true
	}
	if (a.kind == kindFloat || small(a)) && (b.kind == kindFloat || small(b)) {
		x, _ := floatOf(a)
		y, _ := floatOf(b)
		return order(x, y), x == x && y == y
	}
	// One float and one int too large for a float to hold exactly.
	if b.kind == kindFloat {
		f := b.float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return -order(f, 0), !math.IsNaN(f)
		}
		return new(big.Float).SetInt(bigOf(a)).Cmp(big.NewFloat(f)), true
	}
	c, ok = compareNumbers(b, a)
	return -c, ok
}

func order[T int64 | float64](x, y T) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// holds tells whether the ordering operator op accepts the comparison's result.
func holds(op string, c int) bool {
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	default:
		return c >= 0
	}
}

// ordered evaluates <, <=, > or >=.
func (run *budget) ordered(op string, a, b Value, depth int) (bool, error) {
	if err := run.tick(); err != nil {
		return false, err
	}
	if depth > maxValueDepth {
		return false, errNesting()
	}
	if isNumber(a) && isNumber(b) {
		c, ok := compareNumbers(a, b)
		return ok && holds(op, c), nil
	}
	if a.IsUndefined() {
		return false, a.undefinedError()
	}
	if b.IsUndefined() {
		return false, b.undefinedError()
	}
	if a.kind == kindString && b.kind == kindString {
		return holds(op, strings.Compare(a.str, b.str)), run.work(min(len(a.str), len(b.str)))
	}
	if a.kind == b.kind && (a.kind == kindList || a.kind == kindTuple) {
		x, y := a.items(), b.items()
		for i := range min(len(x), len(y)) {
			eq, err := run.equalDeep(x[i], y[i], depth+1)
			if err != nil {
				return false, err
			}
			if !eq {
				return run.ordered(op, x[i], y[i], depth+1)
			}
		}
		return holds(op, order(int64(len(x)), int64(len(y)))), nil
	}
	return false, errorf("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
}

// contains is Python's item in container.
func (run *budget) contains(container, item Value) (bool, error) {
	switch container.kind {
	case kindUndefined, kindMissing:
		return false, nil
	case kindString:
		if item.kind != kindString {
			return false, errorf("'in <string>' requires string as left operand, not %s", item.typeName())
		}
		return strings.Contains(container.str, item.str), run.work(len(container.str) + len(item.str))
	case kindMap, kindKeys:
		if err := run.work(len(item.str)); err != nil {
			return false, err
		}
		i, err := container.mapping().find(item)
		return i >= 0, err
	}
	if !iterable(container) {
		return false, errorf("argument of type '%s' is not iterable", container.typeName())
	}
	items, err := run.iterate(container)
	if err != nil {
		return false, err
	}
	for _, v := range items {
		if eq, err := run.equal(v, item); err != nil || eq {
			return eq, err
		}
	}
	return false, nil
}
