// Package linuxonly has no code. Its name stands in what "go build" and "go install" say on other
// systems, where it has no file: the first error is then that Eagle Ray is for Linux only, and not
// which system call is missing.
package linuxonly
