package rayactor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// runtimeEnvFlag names the flag in errors.
const runtimeEnvFlag = "--ray-runtime-env"

// ParseRuntimeEnv reads the value of --ray-runtime-env: a Ray runtime_env as JSON or YAML text,
// or @file for a file with one. It must be an object, and the values of its env_vars strings, as
// Ray wants them; the rest is Ray's to judge. A blank or empty one is nil: without any, Ray
// starts actors twice as fast. Errors name the flag.
func ParseRuntimeEnv(text string) (json.RawMessage, error) {
	raw := []byte(text)
	if file, ok := strings.CutPrefix(strings.TrimSpace(text), "@"); ok {
		var err error
		if raw, err = readSettings(file); err != nil {
			return nil, fmt.Errorf("%s: %w", runtimeEnvFlag, err)
		}
	}
	env, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", runtimeEnvFlag, err)
	}
	if len(env) == 0 {
		return nil, nil
	}
	if vars, there := env["env_vars"]; there && vars != nil {
		byName, ok := vars.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: env_vars must be an object, not %s", runtimeEnvFlag,
				kindName(vars))
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			if _, ok := byName[name].(string); !ok {
				return nil,
					fmt.Errorf("%s: env_vars: the value of %s must be a string, not %s: put it "+
						"in quotes",
						runtimeEnvFlag, plain(name), kindName(byName[name]))
			}
		}
	}
	out, err := jsonx.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", runtimeEnvFlag, err)
	}
	return out, nil
}

// parseObject reads JSON, keeping its numbers as they are spelled, or else YAML; blank text is an
// empty object.
func parseObject(raw []byte) (map[string]any, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("the text is not UTF-8")
	}
	var value any
	if json.Valid(raw) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
	} else if err := decodeYAML(raw, &value); err != nil {
		return nil, err
	}
	switch v := value.(type) {
	case map[string]any:
		return v, nil
	case nil:
		if len(bytes.TrimSpace(raw)) == 0 {
			return nil, nil
		}
	case string:
		return nil, errors.New("must be an object, not a string; a file is given as @file")
	}
	return nil, fmt.Errorf("must be an object, not %s", kindName(value))
}

// decodeYAML reads one document. What looks like a date stays the text it is.
func decodeYAML(raw []byte, value *any) error {
	d := yaml.NewDecoder(bytes.NewReader(raw))
	var doc, more yaml.Node
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("there must be one YAML document"), err)
	}
	datesAsText(&doc)
	if doc.IsZero() {
		return nil
	}
	if err := doc.Decode(value); err != nil {
		return err
	}
	return jsonable(*value)
}

func datesAsText(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		datesAsText(c)
	}
}

// jsonable refuses what YAML has and JSON has not.
func jsonable(value any) error {
	switch v := value.(type) {
	case map[any]any:
		var wrong []string
		for key := range v {
			if _, ok := key.(string); !ok {
				wrong = append(wrong, fmt.Sprint(key))
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("the key %s must be a string", slices.Min(wrong))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := jsonable(v[name]); err != nil {
				return fmt.Errorf("%s: %w", plain(name), err)
			}
		}
	case []any:
		for _, e := range v {
			if err := jsonable(e); err != nil {
				return err
			}
		}
	case string:
		if !utf8.ValidString(v) {
			return errors.New("binary data has no place here")
		}
	}
	return nil
}

func kindName(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any, map[any]any:
		return "an object"
	}
	return "a number"
}

// WithNsight adds to a runtime_env what vLLM's --ray-workers-use-nsight does: the workers run
// under Nsight Systems, which writes a report for each. A block of the user's own stays.
func WithNsight(env json.RawMessage) json.RawMessage {
	blocks := map[string]json.RawMessage{}
	if len(env) > 0 {
		if err := json.Unmarshal(env, &blocks); err != nil || blocks == nil {
			return env
		}
	}
	if _, there := blocks["nsight"]; there {
		return env
	}
	blocks["nsight"] = json.RawMessage(
		`{"t":"cuda,cudnn,cublas","o":"'worker_process_%p'","cuda-graph-trace":"node"}`)
	out, err := jsonx.Marshal(blocks)
	if err != nil {
		return env
	}
	return out
}

// runtimeEnv is a runtime environment as Ray wants it: the job has all of it but the block of
// Nsight Systems, which only actors may have. Only a job may name folders of the driver's
// machine.
type runtimeEnv struct {
	job, actor json.RawMessage
	// setup is how long Ray may take to set it up on a node, 0 when there is none.
	setup time.Duration
}

// defaultSetup is Ray's limit when config.setup_timeout_seconds says nothing.
const defaultSetup = 600 * time.Second

// splitRuntimeEnv parts what ParseRuntimeEnv and WithNsight return.
func splitRuntimeEnv(env json.RawMessage) (parts runtimeEnv, err error) {
	if len(env) == 0 {
		return parts, nil
	}
	blocks := map[string]json.RawMessage{}
	if err := json.Unmarshal(env, &blocks); err != nil {
		return parts, fmt.Errorf("%s: %w", runtimeEnvFlag, err)
	}
	parts.setup = defaultSetup
	var config struct {
		Seconds float64 `json:"setup_timeout_seconds"`
	}
	// What else may be wrong with it is Ray's to say.
	if json.Unmarshal(blocks["config"], &config) == nil && config.Seconds > 0 {
		parts.setup = time.Duration(config.Seconds * float64(time.Second))
	}
	if nsight, there := blocks["nsight"]; there {
		delete(blocks, "nsight")
		parts.actor, err = jsonx.Marshal(map[string]json.RawMessage{"nsight": nsight})
		if err != nil {
			return parts, err
		}
	}
	if len(blocks) > 0 {
		parts.job, err = jsonx.Marshal(blocks)
	}
	return parts, err
}
