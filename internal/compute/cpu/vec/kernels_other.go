//go:build !amd64

package vec

// Without AVX2 the vector kernels are never chosen (isa.Available says no); these stand in for them
// so that the methods of Ops are written once.

func sumAVX2(x []float32) float32                     { return sumPortable(x) }
func dotAVX2(a, b []float32) float32                  { return dotPortable(a, b) }
func sumSqDiffAVX2(x []float32, mean float32) float32 { return sumSqDiffPortable(x, mean) }
func expAVX2(x []float32, max float32)                { expSumPortable(x, max) }
func maxAVX2(x []float32) float32                     { return maxPortable(x) }
func addAVX2(dst, a, b []float32)                     { addPortable(dst, a, b) }
func mulAVX2(x, f []float32)                          { mulPortable(x, f) }
func axpyAVX2(dst []float32, a float32, x []float32)  { axpyPortable(dst, a, x) }
func addProductsAVX2(dst, a, b []float32)             { addProductsPortable(dst, a, b) }
func recurAVX2([]float32, []float32, []float32, []float32, []float32, float32) {
	panic("vec: no AVX2")
}
func recur512([]float32, []float32, []float32, []float32, []float32, float32) {
	panic("vec: no AVX-512")
}
func fixedAxpyAVX2([]float64, float32, []float32, int, int) { panic("vec: no AVX2") }
func fixedAxpy512([]float64, float32, []float32, int, int)  { panic("vec: no AVX-512") }
func fixedCutAVX2(high, low []float32, x []float64)         { fixedCutPortable(high, low, x) }
func fixedJoinAVX2(high, low []float32)                     { fixedJoinPortable(high, low) }
func scaleAVX2(dst, x []float32, a float32)                 { scalePortable(dst, x, a) }
func divAVX2(x []float32, a float32)                        { divPortable(x, a) }
func scaleWeightAVX2(dst, x, weight []float32, r float32) {
	scaleWeightPortable(dst, x, weight, r)
}
func affineAVX2(dst, x, weight, bias []float32, mean, r float32) {
	affinePortable(dst, x, weight, bias, mean, r)
}
func scaleWeight512(dst, x, weight []float32, r float32) {
	scaleWeightPortable(dst, x, weight, r)
}
func ropeHeads512(*float32, int, int, int, *float32, *float32) { panic("vec: no AVX-512") }
func add512(dst, a, b []float32)                               { addPortable(dst, a, b) }
func exp512(x []float32, max float32)                          { expSumPortable(x, max) }
func siluMul512(dst, gate, up []float32)                       { siluMulPortable(dst, gate, up) }
func siluMulBlocks512(*uint16, []float32, []float32)           { panic("vec: no AVX-512") }
func geluErf512(x []float32)                                   { geluErfPortable(x) }
func ropeAVX2(lo, hi, cos, sin []float32)                      { ropePortable(lo, hi, cos, sin) }
func reluAVX2(x []float32)                                     { reluPortable(x) }
func siluMulAVX2(dst, gate, up []float32)                      { siluMulPortable(dst, gate, up) }
func geluErfAVX2(x []float32)                                  { geluErfPortable(x) }
func toBF16AVX2(dst []uint16, x []float32)                     { toBF16Portable(dst, x) }
func toBF16PairsAVX2(*uint16, int, []float32)                  { panic("vec: no AVX2") }
func fromBF16AVX2(dst []float32, x []uint16)                   { fromBF16Portable(dst, x) }
func toF16AVX2(dst []uint16, x []float32)                      { toF16Portable(dst, x) }
func fromF16AVX2(dst []float32, x []uint16)                    { fromF16Portable(dst, x) }
func largestAVX2(x []float32) uint32                           { return largestPortable(x) }
func int8AVX2(dst []byte, x []float32, scale float32)          { int8Portable(dst, x, scale) }
func e4m3AVX2(dst []byte, x []float32, scale float32)          { e4m3Portable(dst, x, scale) }
func int4AVX2(dst []byte, x []float32, factor float32)         { int4Portable(dst, x, factor) }
