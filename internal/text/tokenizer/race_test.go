//go:build race

package tokenizer

// detector is how many times slower the race detector may make what is timed.
const detector = 30
