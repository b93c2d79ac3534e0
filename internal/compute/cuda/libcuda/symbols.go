package libcuda

import (
	"fmt"
	"strings"
)

// export is a function of libcuda. The names end with the version whose arguments are used here:
// those without one are kept by the driver for programs of older versions.
type export int

const (
	cuInit export = iota
	cuDriverGetVersion
	cuGetErrorName

	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetUuidV2
	cuDeviceGetPCIBusId
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDeviceCanAccessPeer

	cuDevicePrimaryCtxSetFlags
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxSynchronize

	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuMemsetD8Async
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle

	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncSetAttribute
	cuFuncGetAttribute
	cuLaunchKernel
	cuTensorMapEncodeTiled

	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventElapsedTime

	cuStreamBeginCapture
	cuStreamEndCapture
	cuGraphInstantiate
	cuGraphInstantiateWithFlags
	cuGraphDestroy
	cuGraphLaunch
	cuGraphExecDestroy

	exportCount
)

// exportNames are the names by which the exports are looked up.
var exportNames = [exportCount]string{
	cuInit:             "cuInit",
	cuDriverGetVersion: "cuDriverGetVersion",
	cuGetErrorName:     "cuGetErrorName",

	cuDeviceGetCount:      "cuDeviceGetCount",
	cuDeviceGet:           "cuDeviceGet",
	cuDeviceGetName:       "cuDeviceGetName",
	cuDeviceGetUuid:       "cuDeviceGetUuid",
	cuDeviceGetUuidV2:     "cuDeviceGetUuid_v2",
	cuDeviceGetPCIBusId:   "cuDeviceGetPCIBusId",
	cuDeviceTotalMem:      "cuDeviceTotalMem_v2",
	cuDeviceGetAttribute:  "cuDeviceGetAttribute",
	cuDeviceCanAccessPeer: "cuDeviceCanAccessPeer",

	cuDevicePrimaryCtxSetFlags: "cuDevicePrimaryCtxSetFlags_v2",
	cuDevicePrimaryCtxRetain:   "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease:  "cuDevicePrimaryCtxRelease_v2",
	cuCtxSetCurrent:            "cuCtxSetCurrent",
	cuCtxSynchronize:           "cuCtxSynchronize",

	cuMemGetInfo:        "cuMemGetInfo_v2",
	cuMemAlloc:          "cuMemAlloc_v2",
	cuMemFree:           "cuMemFree_v2",
	cuMemHostAlloc:      "cuMemHostAlloc",
	cuMemFreeHost:       "cuMemFreeHost",
	cuMemcpyHtoDAsync:   "cuMemcpyHtoDAsync_v2",
	cuMemcpyDtoHAsync:   "cuMemcpyDtoHAsync_v2",
	cuMemcpyDtoDAsync:   "cuMemcpyDtoDAsync_v2",
	cuMemsetD8Async:     "cuMemsetD8Async",
	cuIpcGetMemHandle:   "cuIpcGetMemHandle",
	cuIpcOpenMemHandle:  "cuIpcOpenMemHandle_v2",
	cuIpcCloseMemHandle: "cuIpcCloseMemHandle",

	cuModuleLoadDataEx:  "cuModuleLoadDataEx",
	cuModuleUnload:      "cuModuleUnload",
	cuModuleGetFunction: "cuModuleGetFunction",
	cuFuncSetAttribute:  "cuFuncSetAttribute",
	cuFuncGetAttribute:  "cuFuncGetAttribute",
	cuLaunchKernel:      "cuLaunchKernel",

	cuTensorMapEncodeTiled: "cuTensorMapEncodeTiled",

	cuStreamCreate:      "cuStreamCreate",
	cuStreamDestroy:     "cuStreamDestroy_v2",
	cuStreamSynchronize: "cuStreamSynchronize",
	cuEventCreate:       "cuEventCreate",
	cuEventDestroy:      "cuEventDestroy_v2",
	cuEventRecord:       "cuEventRecord",
	cuEventElapsedTime:  "cuEventElapsedTime",

	cuStreamBeginCapture:        "cuStreamBeginCapture_v2",
	cuStreamEndCapture:          "cuStreamEndCapture",
	cuGraphInstantiate:          "cuGraphInstantiate_v2",
	cuGraphInstantiateWithFlags: "cuGraphInstantiateWithFlags",
	cuGraphDestroy:              "cuGraphDestroy",
	cuGraphLaunch:               "cuGraphLaunch",
	cuGraphExecDestroy:          "cuGraphExecDestroy",
}

func (e export) String() string { return exportNames[e] }

// alternatives are exports of which a driver may have one only: the first is of CUDA 11.0, the
// second of 11.4.
var alternatives = [][2]export{
	{cuDeviceGetUuid, cuDeviceGetUuidV2},
	{cuGraphInstantiate, cuGraphInstantiateWithFlags},
}

// addresses are where the exports are, 0 for those that a driver does not have.
type addresses [exportCount]uintptr

// lookUp finds the exports of a library.
func lookUp(handle uintptr) *addresses {
	a := &addresses{}
	LookUp(handle, exportNames[:], a[:]) // some of which a driver need not have
	return a
}

// missing names the exports that are needed and not there.
func (a *addresses) missing() []string {
	var names []string
	// Drivers before CUDA 12.0 have no tensor maps, and no device of sm_90 needs them.
	optional := map[export]bool{cuTensorMapEncodeTiled: true}
	for _, pair := range alternatives {
		optional[pair[0]], optional[pair[1]] = true, true
		if a[pair[0]] == 0 && a[pair[1]] == 0 {
			names = append(names, pair[0].String())
		}
	}
	for e, at := range a {
		if at == 0 && !optional[export(e)] {
			names = append(names, export(e).String())
		}
	}
	return names
}

// complete is an error that names what is missing.
func (a *addresses) complete(path string) error {
	names := a.missing()
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s lacks %s: it is no CUDA driver, or one that this program does not know; "+
		"install NVIDIA's driver for CUDA %s or later", path, strings.Join(names, ", "),
		VersionText(OldestVersion))
}
