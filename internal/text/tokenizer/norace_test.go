//go:build !race

package tokenizer

const detector = 1
