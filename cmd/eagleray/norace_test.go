//go:build !race

package main

const detector = 1
