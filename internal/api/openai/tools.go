package openai

import (
	"regexp"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/output"
)

// toolChoice is what tool_choice asks for.
type toolChoice uint8

const (
	// noTools: the answer is text, whatever it looks like.
	noTools toolChoice = iota
	// autoTools: the answer may call tools.
	autoTools
	// someTool: it calls one or more.
	someTool
	// oneTool: it calls the one that is named, once.
	oneTool
)

// toolUse is how the answer may call tools.
type toolUse struct {
	choice toolChoice
	// allowed are the names of the tools that may be called; nil is all.
	allowed []string
	// parallel allows more calls than one.
	parallel bool
	// types are those of the parameters, by function, where the model's format needs them.
	types map[string]map[string]output.Types
}

// decode reads the fields beside tools, which are checked, and nil where there are none.
func (u *toolUse) decode(f *wire.Fields, m *model, tools []byte) {
	u.parallel = f.OptBool("parallel_tool_calls", true)
	raw := f.Value("tool_choice")
	choice := ""
	if raw != nil && raw[0] == '"' {
		choice = wire.Unquote(raw)
	}
	if raw == nil && tools != nil {
		choice = "auto"
	}
	switch {
	case choice == "none", raw == nil && choice == "":
	case tools == nil:
		f.Fail(wire.BadRequest("tool_choice", "When using `tool_choice`, `tools` must be set."))
	case choice == "auto":
		u.choice = autoTools
		f.Fail(m.checkAuto())
	case choice == "required":
		u.choice = someTool
	case raw[0] == '{' && isAllowed(raw):
		f.Fail(u.decodeAllowed(raw, tools, m))
	case raw[0] == '{':
		u.choice, u.allowed = oneTool, []string{functionName(raw)}
		f.Fail(checkNamedTool(u.allowed[0], tools))
	default:
		f.Fail(wire.BadRequest("tool_choice",
			"Invalid value for `tool_choice`: %s! "+
				"Only named tools, \"none\", \"auto\" or \"required\" are supported.",
			wire.Clip(string(raw))))
	}
	if u.choice != noTools && m.format != nil && m.format.Typed {
		u.types = parameterTypes(tools)
	}
}

// checkAuto refuses tool_choice auto where nothing would read the calls.
func (m *model) checkAuto() *wire.Error {
	switch {
	case !m.flags.EnableAutoToolChoice:
		return wire.BadRequest("tool_choice", `"auto" tool choice requires --enable-auto-tool-choice `+
			"and --tool-call-parser to be set")
	case m.format == nil:
		return wire.BadRequest("tool_choice", `"auto" tool choice requires --enable-auto-tool-choice `+
			"and --tool-call-parser to be set. The chat template of this model does not show how "+
			`it writes calls: set --tool-call-parser, or tool_choice to "none" to give the tools `+
			"to the chat template only.")
	}
	return nil
}

// isAllowed is whether a tool_choice is a list of tools that may be called.
func isAllowed(raw []byte) bool {
	return wire.UnquoteOr(memberOf(raw, "type", '"'), "") == "allowed_tools"
}

// decodeAllowed reads {"type":"allowed_tools","allowed_tools":{"mode":…,"tools":[…]}}.
func (u *toolUse) decodeAllowed(raw, tools []byte, m *model) *wire.Error {
	raw = memberOf(raw, "allowed_tools", '{')
	list := memberOf(raw, "tools", '[')
	switch mode := wire.UnquoteOr(memberOf(raw, "mode", '"'), ""); {
	case mode == "auto":
		u.choice = autoTools
		if bad := m.checkAuto(); bad != nil {
			return bad
		}
	case mode == "required":
		u.choice = someTool
	default:
		return wire.BadRequest("tool_choice",
			"`tool_choice.allowed_tools.mode` must be auto or required, got %q", wire.Clip(mode))
	}
	u.allowed = []string{}
	for _, tool := range jsonx.Elements(list) {
		u.allowed = append(u.allowed, functionName(tool))
		if bad := checkNamedTool(functionName(tool), tools); bad != nil {
			return bad
		}
	}
	if len(u.allowed) == 0 {
		return wire.BadRequest("tool_choice", "`tool_choice.allowed_tools.tools` must name a tool")
	}
	return nil
}

// checkNamedTool refuses the name of a tool that there is not.
func checkNamedTool(name string, tools []byte) *wire.Error {
	if name == "" {
		return wire.BadRequest("tool_choice",
			"Invalid `tool_choice`! Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`")
	}
	found := false
	_ = wire.EachElement(tools, func(_ int, raw []byte) *wire.Error {
		found = found || functionName(raw) == name
		return nil
	})
	if !found {
		return wire.BadRequest("tool_choice",
			"The tool specified in `tool_choice` does not match any of the specified `tools`")
	}
	return nil
}

// functionName returns function.name of a tool or a tool choice, "" if there is none.
func functionName(raw []byte) string {
	name := ""
	if raw[0] != '{' {
		return ""
	}
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if key != "function" || raw[0] != '{' {
			return nil
		}
		return wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			if key == "name" && raw[0] == '"' {
				name = wire.Unquote(raw)
			}
			return nil
		})
	})
	return name
}

// toolName is what the name of a function looks like.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// checkTools wants what vLLM wants of tools before the template sees them.
func (c *conversation) checkTools() *wire.Error {
	if c.tools == nil {
		return nil
	}
	seen := map[string]bool{}
	if err := wire.EachElement(c.tools, func(i int, raw []byte) *wire.Error {
		name := functionName(raw)
		switch {
		case name == "":
			return wire.BadRequest("tools", "`tools[%d]` must be an object with function.name", i)
		case !toolName.MatchString(name):
			return wire.BadRequest("tools", "`tools[%d].function.name` must be 1 to 64 letters, "+
				"digits, underscores, dots and dashes, got %q", i, wire.Clip(name))
		case seen[name]:
			return wire.BadRequest("tools", "`tools[%d].function.name` is %q, as that of another tool",
				i, name)
		}
		seen[name] = true
		return nil
	}); err != nil {
		return err
	}
	if len(seen) == 0 {
		return wire.BadRequest("tools", "`tools` must not be an empty array. Either provide at least "+
			"one tool or omit the field entirely.")
	}
	return nil
}
