package values

import (
	"math"
	"math/big"
	"strings"
)

// Compare evaluates a comparison operator.
func (run *Budget) Compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return run.Equal(a, b)
	case "!=":
		eq, err := run.Equal(a, b)
		return !eq, err
	case "in":
		return run.contains(b, a)
	case "not in":
		in, err := run.contains(b, a)
		return !in, err
	}
	return run.Ordered(op, a, b, 0)
}

// Equal is Python's ==.
func (run *Budget) Equal(a, b Value) (bool, error) { return run.equalDeep(a, b, 0) }

func (run *Budget) equalDeep(a, b Value, depth int) (bool, error) {
	if err := run.Tick(); err != nil {
		return false, err
	}
	if depth > maxValueDepth {
		return false, errNesting()
	}
	if IsNumber(a) && IsNumber(b) {
		c, ok := compareNumbers(a, b)
		return ok && c == 0, nil
	}
	if a.IsUndefined() || b.IsUndefined() {
		return a.IsUndefined() && b.IsUndefined(), nil
	}
	if a.Kind != b.Kind {
		return false, nil
	}
	switch a.Kind {
	case KindNone:
		return true, nil
	case KindString:
		if len(a.Text) != len(b.Text) {
			return false, nil
		}
		return a.Text == b.Text, run.Work(len(a.Text))
	case KindList, KindTuple:
		x, y := a.Items(), b.Items()
		if len(x) != len(y) {
			return false, nil
		}
		for i := range x {
			if eq, err := run.equalDeep(x[i], y[i], depth+1); err != nil || !eq {
				return false, err
			}
		}
		return true, nil
	case KindMap:
		return run.equalMaps(a.Mapping(), b.Mapping(), depth)
	case KindKeys, KindItems:
		if a.Mapping().Len() != b.Mapping().Len() {
			return false, nil
		}
		return run.equalMaps(a.Mapping(), b.Mapping(), depth)
	case KindRange:
		x, y := a.Ref.(*Range), b.Ref.(*Range)
		return x.N == y.N && (x.N == 0 || x.Start == y.Start && (x.N == 1 || x.Step == y.Step)), nil
	}
	return a.Ref == b.Ref, nil
}

func (run *Budget) equalMaps(a, b *Map, depth int) (bool, error) {
	if a.Len() != b.Len() {
		return false, nil
	}
	for _, e := range a.Entries {
		i, err := b.Find(e.Key)
		if err != nil {
			return false, err
		}
		if i < 0 {
			return false, run.Tick()
		}
		if eq, err := run.equalDeep(e.Value, b.Entries[i].Value, depth+1); err != nil || !eq {
			return false, err
		}
	}
	return true, nil
}

// compareNumbers orders two numbers exactly; ok is false if one is not a number (NaN).
func compareNumbers(a, b Value) (c int, ok bool) {
	const exact = 1 << 53
	small := func(v Value) bool {
		return (v.Kind == KindInt || v.Kind == KindBool) && v.Num >= -exact && v.Num <= exact
	}
	if IsInteger(a) && IsInteger(b) {
		if a.Kind != KindBig && b.Kind != KindBig {
			return order(a.Num, b.Num), true
		}
		return BigOf(a).Cmp(BigOf(b)), true
	}
	if (a.Kind == KindFloat || small(a)) && (b.Kind == KindFloat || small(b)) {
		x, _ := FloatOf(a)
		y, _ := FloatOf(b)
		return order(x, y), x == x && y == y
	}
	// One float and one int too large for a float to hold exactly.
	if b.Kind == KindFloat {
		f := b.AsFloat()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return -order(f, 0), !math.IsNaN(f)
		}
		return new(big.Float).SetInt(BigOf(a)).Cmp(big.NewFloat(f)), true
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

// Ordered evaluates <, <=, > or >=.
func (run *Budget) Ordered(op string, a, b Value, depth int) (bool, error) {
	if err := run.Tick(); err != nil {
		return false, err
	}
	if depth > maxValueDepth {
		return false, errNesting()
	}
	if IsNumber(a) && IsNumber(b) {
		c, ok := compareNumbers(a, b)
		return ok && holds(op, c), nil
	}
	if a.IsUndefined() {
		return false, a.UndefinedError()
	}
	if b.IsUndefined() {
		return false, b.UndefinedError()
	}
	if a.Kind == KindString && b.Kind == KindString {
		return holds(op, strings.Compare(a.Text, b.Text)), run.Work(min(len(a.Text), len(b.Text)))
	}
	if a.Kind == b.Kind && (a.Kind == KindList || a.Kind == KindTuple) {
		x, y := a.Items(), b.Items()
		for i := range min(len(x), len(y)) {
			eq, err := run.equalDeep(x[i], y[i], depth+1)
			if err != nil {
				return false, err
			}
			if !eq {
				return run.Ordered(op, x[i], y[i], depth+1)
			}
		}
		return holds(op, order(int64(len(x)), int64(len(y)))), nil
	}
	return false, Errorf("'%s' not supported between instances of '%s' and '%s'", op, a.TypeName(),
		b.TypeName())
}

// contains is Python's item in container.
func (run *Budget) contains(container, item Value) (bool, error) {
	switch container.Kind {
	case KindUndefined, KindMissing:
		return false, nil
	case KindString:
		if item.Kind != KindString {
			return false, Errorf("'in <string>' requires string as left operand, not %s",
				item.TypeName())
		}
		return strings.Contains(container.Text,
			item.Text), run.Work(len(container.Text) + len(item.Text))
	case KindMap, KindKeys:
		if err := run.Work(len(item.Text)); err != nil {
			return false, err
		}
		i, err := container.Mapping().Find(item)
		return i >= 0, err
	}
	if !Iterable(container) {
		return false, Errorf("argument of type '%s' is not iterable", container.TypeName())
	}
	items, err := run.Iterate(container)
	if err != nil {
		return false, err
	}
	for _, v := range items {
		if eq, err := run.Equal(v, item); err != nil || eq {
			return eq, err
		}
	}
	return false, nil
}
