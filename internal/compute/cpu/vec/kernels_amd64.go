package vec

// The AVX2 kernels. Their operands have equal lengths; the methods of Ops see to that.

//go:noescape
func sumAVX2(x []float32) float32

//go:noescape
func dotAVX2(a, b []float32) float32

//go:noescape
func sumSqDiffAVX2(x []float32, mean float32) float32

//go:noescape
func expAVX2(x []float32, max float32)

//go:noescape
func maxAVX2(x []float32) float32

//go:noescape
func addAVX2(dst, a, b []float32)

//go:noescape
func mulAVX2(x, f []float32)

//go:noescape
func addProductsAVX2(dst, a, b []float32)

//go:noescape
func recurAVX2(state, out, k, q, u []float32, decay float32)

//go:noescape
func recur512(state, out, k, q, u []float32, decay float32)

//go:noescape
func axpyAVX2(dst []float32, a float32, x []float32)

//go:noescape
func fixedAxpyAVX2(dst []float64, a float32, x []float32, chunks, step int)

//go:noescape
func fixedAxpy512(dst []float64, a float32, x []float32, chunks, step int)

//go:noescape
func fixedCutAVX2(high, low []float32, x []float64)

//go:noescape
func fixedJoinAVX2(high, low []float32)

//go:noescape
func scaleAVX2(dst, x []float32, a float32)

//go:noescape
func divAVX2(x []float32, a float32)

//go:noescape
func scaleWeightAVX2(dst, x, weight []float32, r float32)

//go:noescape
func affineAVX2(dst, x, weight, bias []float32, mean, r float32)

//go:noescape
func ropeAVX2(lo, hi, cos, sin []float32)

//go:noescape
func reluAVX2(x []float32)

//go:noescape
func siluMulAVX2(dst, gate, up []float32)

//go:noescape
func geluErfAVX2(x []float32)

// ropeHeads512 turns heads that lie step bytes apart, by halves of a multiple of ropeStep512.
//
//go:noescape
func ropeHeads512(x *float32, heads, step, half int, cos, sin *float32)

// These take the leading multiple of rowStep512 elements and leave the rest alone.

//go:noescape
func add512(dst, a, b []float32)

//go:noescape
func scaleWeight512(dst, x, weight []float32, r float32)

// The other kernels of AVX-512 take that of step512.

//go:noescape
func exp512(x []float32, max float32)

//go:noescape
func siluMul512(dst, gate, up []float32)

//go:noescape
func siluMulBlocks512(dst *uint16, gate, up []float32)

//go:noescape
func geluErf512(x []float32)

// largestAVX2 takes a multiple of largestStep elements, the roundings take one of roundStep.

//go:noescape
func largestAVX2(x []float32) uint32

//go:noescape
func int8AVX2(dst []byte, x []float32, scale float32)

//go:noescape
func e4m3AVX2(dst []byte, x []float32, scale float32)

//go:noescape
func int4AVX2(dst []byte, x []float32, factor float32)

// The conversions take the leading multiple of eight elements and leave the rest alone.

//go:noescape
func toBF16AVX2(dst []uint16, x []float32)

// toBF16PairsAVX2 has rows of 16 elements, step bytes apart.
//
//go:noescape
func toBF16PairsAVX2(dst *uint16, step int, x []float32)

//go:noescape
func fromBF16AVX2(dst []float32, x []uint16)

//go:noescape
func toF16AVX2(dst []uint16, x []float32)

//go:noescape
func fromF16AVX2(dst []float32, x []uint16)
