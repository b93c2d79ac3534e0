// Package builtin holds the model that comes with the program: a small one that completes the text
// of Go's standard library documentation, good for a first run, for tests and for measuring without
// a download.
package builtin

import (
	_ "embed" // for the files below
	"unsafe"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Name is what a user calls the built-in model.
const Name = "go-std-tiny"

// The files are embedded as strings because those lie in the program's read-only data: they cost no
// heap, are read from the executable page by page as they are touched, and are shared by all
// processes that run it. An embedded byte slice would lie in writable memory.
var (
	//go:embed go-std-tiny/model.safetensors
	weights string
	//go:embed go-std-tiny/config.json
	config string
	//go:embed go-std-tiny/generation_config.json
	generationConfig string
	//go:embed go-std-tiny/tokenizer.json
	tokenizer string
	//go:embed go-std-tiny/tokenizer_config.json
	tokenizerConfig string
)

// Folder returns the model's files. Nothing is copied: what its methods return is read-only memory,
// and a write to it faults.
func Folder() checkpoint.Folder {
	return checkpoint.Embedded("built-in model "+Name, map[string][]byte{
		"model.safetensors":      view(weights),
		"config.json":            view(config),
		"generation_config.json": view(generationConfig),
		"tokenizer.json":         view(tokenizer),
		"tokenizer_config.json":  view(tokenizerConfig),
	})
}

// view is the bytes of s where they are.
func view(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
