package sample

import "math/bits"

// Constants of Philox4x32 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2,
// 3", SC 2011, and its reference implementation Random123).
const (
	philoxM0 = 0xD2511F53
	philoxM1 = 0xCD9E8D57
	philoxW0 = 0x9E3779B9
	philoxW1 = 0xBB67AE85
)

// philox4x32 is Philox4x32-10: a bijection of the 128-bit counter chosen by the 64-bit key.
func philox4x32(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(philoxM0, ctr[0])
		hi1, lo1 := bits.Mul32(philoxM1, ctr[2])
		ctr = [4]uint32{hi1 ^ ctr[1] ^ key[0], lo1, hi0 ^ ctr[3] ^ key[1], lo0}
		key[0] += philoxW0
		key[1] += philoxW1
	}
	return ctr
}

// uniform returns the number in [0, 1) that decides the token at an absolute position: 53 bits of
// Philox4x32-10 with the seed as key and the position as counter. It depends on nothing else.
func uniform(seed uint64, position uint32) float64 {
	r := philox4x32([4]uint32{position}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64((uint64(r[0])<<32|uint64(r[1]))>>11) * 0x1p-53
}
