package gguf

import "testing"

// BenchmarkDecode unpacks a row of 4,096 numbers, as a table does for each token.
func BenchmarkDecode(b *testing.B) {
	for _, kind := range []Type{Q4_0, Q4K, Q6K, Q8_0} {
		b.Run(kind.String(), func(b *testing.B) {
			row, dst := make([]byte, 4096/kind.Block()*kind.Bytes()), make([]float32, 4096)
			b.SetBytes(4 * 4096)
			for b.Loop() {
				kind.Decode(dst, row)
			}
		})
	}
}
