package checkpoint

import "slices"

// InMemory is a checkpoint of tensors that lie in memory of the caller's. free is called when it is
// closed.
func InMemory(location string, tensors []Tensor, free func() error) *Checkpoint {
	c := &Checkpoint{location: location, tensors: make(map[string]*record, len(tensors)),
		backing: lent{free}}
	for _, t := range tensors {
		t.Shape = slices.Clone(t.Shape)
		c.tensors[t.Name] = &record{Tensor: t}
	}
	c.finish()
	return c
}

// ParseDType is the type of a name: that of the safetensors format, such as "BF16", or torch's and
// numpy's, such as "torch.bfloat16" and "float32".
func ParseDType(name string) (DType, bool) {
	switch name {
	case "bfloat16", "torch.bfloat16":
		return BF16, true
	case "float16", "torch.float16", "half", "torch.half":
		return F16, true
	case "float32", "torch.float32", "float", "torch.float":
		return F32, true
	}
	return parseDType(name)
}

// lent is the backing of memory that is the caller's.
type lent struct{ free func() error }

func (lent) use(*record)             {}
func (lent) release(*record, []byte) {}
func (l lent) close() error          { return l.free() }
