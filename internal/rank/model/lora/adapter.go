package lora

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Adapter is what an adapter changes of its model.
type Adapter struct {
	// Modules are sorted by name.
	Modules []Module `json:"modules"`
}

// Module is the pair of matrices of one module.
type Module struct {
	// Name is the module's in the model, such as model.layers.0.self_attn.q_proj.
	Name string `json:"name"`
	// Rank, In and Out are the shapes of A, [Rank][In], and B, [Out][Rank].
	Rank int `json:"rank"`
	In   int `json:"in"`
	Out  int `json:"out"`
	// Scale is what B·(A·x) is multiplied by.
	Scale float32 `json:"scale"`
	// A and B are the names of the tensors.
	A string `json:"a"`
	B string `json:"b"`
}

// Rank is the largest rank of a module.
func (a *Adapter) Rank() (most int) {
	for i := range a.Modules {
		most = max(most, a.Modules[i].Rank)
	}
	return most
}

// Bytes is what the matrices take with elements of a size.
func (a *Adapter) Bytes(size int) (sum int64) {
	for i := range a.Modules {
		m := &a.Modules[i]
		sum += int64(m.Rank) * int64(m.In+m.Out) * int64(size)
	}
	return sum
}

// prefix is what PEFT writes before the name that a module has in the model.
const prefix = "base_model.model."

// Open reads an adapter's folder. The checkpoint of its tensors is the caller's to close. An error
// names the file, the field or the tensor.
func Open(folder checkpoint.Folder) (*Adapter, *checkpoint.Checkpoint, error) {
	raw, err := folder.ReadFile(ConfigFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("%s has no %s: it is no adapter of PEFT's",
			folder.Location(), ConfigFile)
	case err != nil:
		return nil, nil, err
	}
	s, err := readConfig(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", ConfigFile, err)
	}
	if !slices.Contains(folder.Names(), WeightsFile) {
		return nil, nil, fmt.Errorf("%s has no %s: pickled weights are not read",
			folder.Location(), WeightsFile)
	}
	c, err := checkpoint.Open(checkpoint.Single(folder, WeightsFile))
	if err != nil {
		return nil, nil, err
	}
	a, err := s.adapter(c)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", WeightsFile, err), c.Close())
	}
	return a, c, nil
}

// part says which matrix of which module a tensor of the file is.
func part(tensor string) (module string, b, ok bool) {
	name := strings.TrimPrefix(tensor, prefix)
	if module, ok = strings.CutSuffix(name, ".lora_A.weight"); ok && module != "" {
		return module, false, true
	}
	module, ok = strings.CutSuffix(name, ".lora_B.weight")
	return module, true, ok && module != ""
}

// adapter finds the pairs of matrices. Those of encoders beside the language model are left out as
// the encoders are.
func (s *settings) adapter(c *checkpoint.Checkpoint) (*Adapter, error) {
	found := map[string]*Module{}
	has := map[string]int{} // 1 for A, 2 for B
	for _, name := range c.Names() {
		module, b, ok := part(name)
		if checkpoint.OfEncoder(module) {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("tensor %s is neither A nor B of a linear module: what else "+
				"was trained is not adapted", checkpoint.Short(name))
		}
		t, ok := c.Header(name)
		if !ok || !t.DType.Weight() {
			return nil, fmt.Errorf("tensor %s has type %v, not BF16, F16 or F32",
				checkpoint.Short(name), t.DType)
		}
		if len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] < 1 {
			return nil, fmt.Errorf("tensor %s has shape %v, which is no matrix",
				checkpoint.Short(name), t.Shape)
		}
		m := found[module]
		if m == nil {
			m = &Module{Name: module}
			found[module] = m
		}
		rank, mark := t.Shape[0], 1
		if b {
			m.Out, rank, mark = t.Shape[0], t.Shape[1], 2
			m.B = name
		} else {
			m.In, m.A = t.Shape[1], name
		}
		if has[module]&mark != 0 {
			return nil, fmt.Errorf("module %s has a matrix twice", checkpoint.Short(module))
		}
		if has[module] != 0 && m.Rank != rank {
			return nil, fmt.Errorf("module %s has A of rank %d and B of rank %d, or the other way",
				checkpoint.Short(module), m.Rank, rank)
		}
		m.Rank = rank
		has[module] |= mark
	}
	a := &Adapter{}
	for module, m := range found {
		if has[module] != 3 {
			return nil, fmt.Errorf("module %s has one of A and B, not both",
				checkpoint.Short(module))
		}
		a.Modules = append(a.Modules, *m)
	}
	sort.Slice(a.Modules, func(i, j int) bool { return a.Modules[i].Name < a.Modules[j].Name })
	if len(a.Modules) == 0 {
		return nil, errors.New("it adapts no module")
	}
	for i := range a.Modules {
		m := &a.Modules[i]
		var err error
		if m.Scale, err = s.scale(m.Name, m.Rank); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Shape is that of a module of a model that can be adapted.
type Shape struct {
	Name    string
	Out, In int
}

// Fit holds an adapter to a model: every module that it adapts is one that can be, of the same
// width, and of a rank of at most maxRank. Modules of a file that was trained on the model without
// its head lack the first name of their path, and have another one in Nemotron-H's own code: they
// get the model's. The error names the first module that does not fit, and both shapes.
func (a *Adapter) Fit(model []Shape, maxRank int) error {
	known := make(map[string]Shape, len(model))
	for _, s := range model {
		_, bare, _ := strings.Cut(s.Name, ".")
		known[s.Name], known[bare], known["backbone."+bare] = s, s, s
	}
	for i := range a.Modules {
		m := &a.Modules[i]
		s, ok := known[m.Name]
		if ok {
			m.Name = s.Name
		}
		switch {
		case !ok:
			return fmt.Errorf("the model has no module %s that can be adapted: linear modules of "+
				"attention and of feed-forward blocks can, embeddings, heads, routers, experts of "+
				"mixtures and kv_b_proj cannot", checkpoint.Short(m.Name))
		case m.Out != s.Out || m.In != s.In:
			return fmt.Errorf("the adapter is for another model: its module %s has %d input and "+
				"%d output features (A %v, B %v), the model's has %d and %d", m.Name, m.In, m.Out,
				[]int{m.Rank, m.In}, []int{m.Out, m.Rank}, s.In, s.Out)
		case m.Rank > maxRank:
			return fmt.Errorf("the adapter has rank %d in module %s, above --max-lora-rank %d",
				m.Rank, m.Name, maxRank)
		}
	}
	return nil
}
