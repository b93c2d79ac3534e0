// Command attach attaches a program to the executable file of another: eagleray-cuda to eagleray.
package main

import (
	"fmt"
	"os"

	"github.com/eagleray/eagleray/internal/sys/attached"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: attach FILE PROGRAM")
		os.Exit(2)
	}
	if err := attached.Attach(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "attach:", err)
		os.Exit(1)
	}
}
