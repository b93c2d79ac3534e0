//go:build race

package main

// detector is how many times longer what is waited for may take under the race detector, which
// takes several times the memory, too.
const detector = 10
