// Command gen writes the kernels of package amx: go generate, in its folder.
package main

import (
	"log"
	"os"
)

// files are what it writes.
var files = map[string]func() []byte{"multiply_amd64.s": multiply, "codes_amd64.s": codes}

func main() {
	for name, write := range files {
		if err := os.WriteFile(name, write(), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
