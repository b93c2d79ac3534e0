//go:build !amd64

package sample

const vector = false

func maxesAVX2(maxes, x *float32, blocks int) {}

func sumsAVX2(sums, x *float32, blocks int, base, k float32) {}

func countAVX2(x *float32, blocks int, value float32) int { return 0 }

func aboveAVX2(words *uint64, x *float32, low float32) {}
