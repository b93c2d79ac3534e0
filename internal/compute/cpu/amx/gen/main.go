// Command gen writes the kernel of package amx: go generate, in its folder.
package main

import (
	"log"
	"os"
)

const file = "multiply_amd64.s"

func main() {
	if err := os.WriteFile(file, multiply(), 0o644); err != nil {
		log.Fatal(err)
	}
}
