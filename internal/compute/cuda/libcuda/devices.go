package libcuda

import (
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// Attributes of devices, of CUdevice_attribute.
const (
	multiprocessors  = 16
	l2Bytes          = 38
	capabilityMajor  = 75
	capabilityMinor  = 76
	sharedBytesOptIn = 97
)

// uuid is a CUuuid.
type uuid [16]byte

// Devices lists the devices that this process may use, by ordinal: CUDA_VISIBLE_DEVICES chooses
// them and their order.
func (l *Library) Devices() ([]driver.Info, error) {
	n, err := l.count()
	if err != nil {
		return nil, err
	}
	var list []driver.Info
	for ordinal := range n {
		device, err := l.device(ordinal)
		if err != nil {
			return nil, err
		}
		info, err := l.info(device)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", ordinal, err)
		}
		list = append(list, info)
	}
	return list, nil
}

func (l *Library) count() (int, error) {
	var n int32
	if code := l.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))); code != 0 {
		return 0, l.refused(cuDeviceGetCount, code)
	}
	return int(n), nil
}

// device is the driver's number of a device.
func (l *Library) device(ordinal int) (int32, error) {
	var device int32
	code := l.call(cuDeviceGet, uintptr(unsafe.Pointer(&device)), uintptr(ordinal))
	if code != 0 {
		return 0, l.failure(cuDeviceGet, code, fmt.Sprintf("device %d", ordinal))
	}
	return device, nil
}

func (l *Library) info(device int32) (i driver.Info, err error) {
	if i.Name, err = l.text(cuDeviceGetName, device); err != nil {
		return i, err
	}
	if i.PCI, err = l.text(cuDeviceGetPCIBusId, device); err != nil {
		return i, err
	}
	i.PCI = strings.ToLower(i.PCI)
	if i.UUID, err = l.identity(device, i.Name); err != nil {
		return i, err
	}
	for _, a := range []struct {
		attribute uintptr
		to        *int
	}{
		{capabilityMajor, &i.Major}, {capabilityMinor, &i.Minor},
		{multiprocessors, &i.Multiprocessors}, {sharedBytesOptIn, &i.Shared}, {l2Bytes, &i.L2},
	} {
		if *a.to, err = l.attribute(a.attribute, device); err != nil {
			return i, err
		}
	}
	code := l.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&i.Memory)), uintptr(device))
	if code != 0 {
		return i, l.failure(cuDeviceTotalMem, code, "")
	}
	return i, nil
}

// text is the answer of an export that writes a string.
func (l *Library) text(e export, device int32) (string, error) {
	var buffer [256]byte
	code := l.call(e, uintptr(unsafe.Pointer(&buffer)), uintptr(len(buffer)), uintptr(device))
	if code != 0 {
		return "", l.failure(e, code, "")
	}
	return unix.ByteSliceToString(buffer[:]), nil
}

func (l *Library) attribute(which uintptr, device int32) (int, error) {
	var value int32
	code := l.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&value)), which, uintptr(device))
	if code != 0 {
		return 0, l.failure(cuDeviceGetAttribute, code, fmt.Sprintf("attribute %d", which))
	}
	return int(value), nil
}

// identity is a device's UUID as nvidia-smi writes it. No attribute says that a device is a part of
// a GPU (MIG): of such a one the newer export has another UUID than the older, which is of the
// whole GPU, and the driver puts " MIG " and its size in the name.
func (l *Library) identity(device int32, name string) (string, error) {
	mig := strings.Contains(name, " MIG ")
	if l.addresses[cuDeviceGetUuidV2] == 0 {
		whole, err := l.uuid(cuDeviceGetUuid, device)
		return uuidText(whole, mig), err
	}
	own, err := l.uuid(cuDeviceGetUuidV2, device)
	if err != nil || l.addresses[cuDeviceGetUuid] == 0 {
		return uuidText(own, mig), err
	}
	whole, err := l.uuid(cuDeviceGetUuid, device)
	return uuidText(own, mig || own != whole), err
}

func (l *Library) uuid(e export, device int32) (uuid, error) {
	var u uuid
	if code := l.call(e, uintptr(unsafe.Pointer(&u)), uintptr(device)); code != 0 {
		return u, l.failure(e, code, "")
	}
	return u, nil
}

func uuidText(u uuid, mig bool) string {
	kind := "GPU"
	if mig {
		kind = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
