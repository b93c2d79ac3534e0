// Package loratest writes adapters of random numbers, for tests and measurements.
package loratest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// Options are what adapters differ in.
type Options struct {
	Rank int
	// Seed gives the numbers of A and B, which lie between -Width and Width.
	Seed  uint64
	Width float64
	// Config has members that go before those that are written.
	Config map[string]any
}

// ShapesOf are the modules of the model in a folder that an adapter may stand beside.
func ShapesOf(folder checkpoint.Folder) ([]lora.Shape, error) {
	raw, err := checkpoint.ReadConfig(folder)
	if err != nil {
		return nil, err
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		return nil, err
	}
	return model.Adaptable(cfg)
}

// Write makes a folder of an adapter of modules, whose tensors are float32.
func Write(dir string, modules []lora.Shape, o Options) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	rng := rand.New(rand.NewPCG(o.Seed, 2))
	header, data := map[string]entry{}, []byte(nil)
	matrix := func(name string, rows, cols int) {
		from := int64(len(data))
		for range rows * cols {
			data = binary.LittleEndian.AppendUint32(data,
				math.Float32bits(float32((2*rng.Float64()-1)*o.Width)))
		}
		header[name] = entry{"F32", []int{rows, cols}, [2]int64{from, int64(len(data))}}
	}
	for _, m := range modules {
		matrix("base_model.model."+m.Name+".lora_A.weight", o.Rank, m.In)
		matrix("base_model.model."+m.Name+".lora_B.weight", m.Out, o.Rank)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	file = append(append(file, text...), data...)
	config := map[string]any{"peft_type": "LORA", "r": o.Rank, "lora_alpha": 2 * o.Rank,
		"bias": "none", "use_rslora": false}
	for key, value := range o.Config {
		config[key] = value
	}
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, lora.ConfigFile), text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, lora.WeightsFile), file, 0o644)
}
