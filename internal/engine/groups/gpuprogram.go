package groups

import (
	"fmt"
	"os"
	"path/filepath"
)

// gpuProgramName is the file of the program that runs ranks on GPUs. It is another one than this,
// since the driver's library makes a program dynamic.
const gpuProgramName = "eagleray-cuda"

// GPUProgram is the program that runs ranks on GPUs, which lies beside this one.
func GPUProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own binary: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), gpuProgramName)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("ranks on GPUs are run by %s, which is not beside %s: make build "+
			"makes both", gpuProgramName, self)
	}
	return path, nil
}
