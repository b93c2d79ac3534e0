package collective

import "fmt"

// MaxRanks is the largest group whose sum is defined.
const MaxRanks = 8

// ValidRanks tells whether a group of n ranks is a perfect tree: 1, 2, 4 or 8.
func ValidRanks(n int) bool { return n == 1 || n == 2 || n == 4 || n == 8 }

// SumTree sets dst to the sum of the parts, one per rank, in fp32 as a balanced binary tree over the ranks:
// (0+1), ((0+1)+(2+3)), (((0+1)+(2+3))+((4+5)+(6+7))). Each element's bits depend on the parts' elements
// and on nothing else, so it does not matter which rank adds or in how many pieces (only the payload of a
// NaN may differ). All slices have the length of dst, which may be one of the parts. It panics unless there
// are 1, 2, 4 or 8 parts.
func SumTree(dst []float32, parts [][]float32) {
	switch len(parts) {
	case 1:
		copy(dst, parts[0])
	case 2:
		sum2(dst, parts[0], parts[1])
	case 4:
		sum4(dst, parts[0], parts[1], parts[2], parts[3])
	case 8:
		sum8(dst, parts)
	default:
		panic(fmt.Sprintf("sum of %d parts", len(parts)))
	}
}

func sum2(dst, a, b []float32) {
	for len(dst) >= 8 && len(a) >= 8 && len(b) >= 8 {
		d, x, y := (*[8]float32)(dst), (*[8]float32)(a), (*[8]float32)(b)
		d[0], d[1], d[2], d[3] = x[0]+y[0], x[1]+y[1], x[2]+y[2], x[3]+y[3]
		d[4], d[5], d[6], d[7] = x[4]+y[4], x[5]+y[5], x[6]+y[6], x[7]+y[7]
		dst, a, b = dst[8:], a[8:], b[8:]
	}
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func sum4(dst, a, b, c, d []float32) {
	for len(dst) >= 4 && len(a) >= 4 && len(b) >= 4 && len(c) >= 4 && len(d) >= 4 {
		w, x, y, z := (*[4]float32)(a), (*[4]float32)(b), (*[4]float32)(c), (*[4]float32)(d)
		to := (*[4]float32)(dst)
		to[0], to[1] = (w[0]+x[0])+(y[0]+z[0]), (w[1]+x[1])+(y[1]+z[1])
		to[2], to[3] = (w[2]+x[2])+(y[2]+z[2]), (w[3]+x[3])+(y[3]+z[3])
		dst, a, b, c, d = dst[4:], a[4:], b[4:], c[4:], d[4:]
	}
	a, b, c, d = a[:len(dst)], b[:len(dst)], c[:len(dst)], d[:len(dst)]
	for i := range dst {
		dst[i] = (a[i] + b[i]) + (c[i] + d[i])
	}
}

func sum8(dst []float32, parts [][]float32) {
	n := len(dst)
	a, b, c, d := parts[0][:n], parts[1][:n], parts[2][:n], parts[3][:n]
	e, f, g, h := parts[4][:n], parts[5][:n], parts[6][:n], parts[7][:n]
	for i := range dst {
		dst[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]))
	}
}
