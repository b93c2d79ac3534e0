package double

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// Parse reads what a test says of the driver of another process, which is bound, words with commas
// between them:
//
//	seed=N        the order in which blocks and warps execute
//	check         find races and reads of what was never written
//	memory=BYTES  what the device has
//	apart         devices do not reach each other's memory
//	nccl          ranks may exchange by NCCL
//	cublaslt      products of many rows may be cuBLASLt's, which adds as kernels do
//	cublaslt=own  or in an order of its own
//	fail=CALL:CODE:N:FILE
//	              the N-th call of a function of the driver's API returns an error, by its
//	              code, or never returns ("hang"), in the first process that makes the file
//
// "" is nothing. Threads execute blocks.
func Parse(text string, threads int) (*Driver, error) {
	d := &Driver{Threads: threads, Bound: true}
	for _, word := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "":
		case "seed":
			d.Seed, err = strconv.ParseUint(value, 10, 64)
		case "check":
			d.Check = true
		case "apart":
			d.Apart = true
		case "nccl":
			d.NCCL = new(NCCL)
		case "cublaslt":
			d.CUBLASLt = &CUBLASLt{Own: value == "own"}
		case "memory":
			d.Info.Memory, err = strconv.ParseUint(value, 10, 64)
		case "fail":
			d.Fail, err = parseFailure(value)
		default:
			err = fmt.Errorf("%q is none of seed, check, memory, apart, nccl, cublaslt, fail", name)
		}
		if err != nil {
			return nil, fmt.Errorf("driver of a PTX machine, %q: %w", word, err)
		}
	}
	if d.NCCL != nil {
		d.NCCL.Fail = d.Fail
	}
	if d.CUBLASLt != nil {
		d.CUBLASLt.Fail = d.Fail
	}
	return d, nil
}

// parseFailure makes a Driver.Fail of CALL:CODE:N:FILE.
func parseFailure(text string) (func(call string) error, error) {
	parts := strings.SplitN(text, ":", 4)
	if len(parts) != 4 {
		return nil, fmt.Errorf("%q is not CALL:CODE:N:FILE", text)
	}
	code, err := strconv.Atoi(parts[1])
	if err != nil && parts[1] != "hang" {
		return nil, err
	}
	left, err := strconv.Atoi(parts[2])
	if err != nil {
		return nil, err
	}
	return func(call string) error {
		if call != parts[0] {
			return nil
		}
		if left--; left != 0 {
			return nil
		}
		f, err := os.OpenFile(parts[3], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil // it has failed before, in another process
		}
		if err := f.Close(); err != nil {
			return err
		}
		for code == 0 {
			time.Sleep(time.Hour) // a device that hangs: only the process's end ends it
		}
		return &driver.Error{Call: call, Code: code, Name: "CUDA_ERROR_OF_A_TEST"}
	}, nil
}
