package generate

import (
	"encoding/json"
	"regexp"
	"slices"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// Tool is a function that the answer may call.
type Tool struct {
	Name string
	// raw is the tool as chat templates know it: {"type":"function","function":{…}}.
	raw json.RawMessage
	// parameters is the schema of its arguments, nil for none.
	parameters json.RawMessage
	// strict says that calls are to keep to the schema although none has to be made.
	strict bool
}

// NewTool takes a tool apart that is written as chat templates know it.
func NewTool(raw []byte) Tool {
	f := wire.MemberOf(raw, "function", '{')
	t := Tool{Name: wire.UnquoteOr(wire.MemberOf(f, "name", '"'), ""), raw: raw,
		strict: string(wire.MemberOf(f, "strict", 't')) == "true"}
	for key, raw := range jsonx.Members(f) {
		if key == "parameters" && !wire.IsNull(raw) {
			t.parameters = raw
		}
	}
	return t
}

// noCustomTools is why OpenAI's custom tools are refused.
const noCustomTools = "this server takes functions, whose arguments are JSON, and no custom " +
	"tools, whose input is any text"

// RefuseCustom refuses OpenAI's custom tool, or a choice of one, that stands at a place in the
// request: in the Responses API its name stands beside its type, in chat in an object of its own.
// Others pass.
func RefuseCustom(at wire.Path, tool []byte) *wire.Error {
	const kind = "custom"
	if wire.TypeOf(tool) != kind {
		return nil
	}
	name := wire.MemberOf(tool, "name", '"')
	if inner := wire.MemberOf(tool, kind, '{'); inner != nil {
		name = wire.MemberOf(inner, "name", '"')
	}
	return at.Bad("is the custom tool %q: %s", wire.Clip(wire.UnquoteOr(name, "")), noCustomTools)
}

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

// forced is whether the answer has to call.
func (c toolChoice) forced() bool { return c == someTool || c == oneTool }

// toolUse is how the answer may call tools.
type toolUse struct {
	choice toolChoice
	// allowed are the names of the tools that may be called; nil is all.
	allowed []string
	// Parallel allows more calls than one.
	Parallel bool
}

// ChooseByWord obeys a tool_choice that is none, auto or required, and auto where tools are given
// and no choice (nil).
func (u *toolUse) ChooseByWord(raw []byte, tools []Tool, m *Model) *wire.Error {
	choice := ""
	switch {
	case raw != nil && raw[0] == '"':
		choice = wire.Unquote(raw)
	case raw == nil && tools == nil:
		return nil
	case raw == nil:
		choice = "auto"
	}
	switch {
	case choice == "none":
		return nil
	case tools == nil:
		return ToolsMissing()
	case choice == "auto":
		u.choice, u.allowed = autoTools, nil
		return m.checkAuto()
	case choice == "required":
		u.choice, u.allowed = someTool, nil
		return nil
	}
	return wire.BadRequest("tool_choice", "Invalid value for `tool_choice`: %s! "+
		"Only named tools, \"none\", \"auto\" or \"required\" are supported.",
		wire.Clip(string(raw)))
}

// ChooseOne has the answer call a tool, once.
func (u *toolUse) ChooseOne(name string, tools []Tool) *wire.Error {
	if tools == nil {
		return ToolsMissing()
	}
	u.choice, u.allowed = oneTool, []string{name}
	return checkNamedTool(name, tools)
}

// ChooseAmong restricts the calls to tools by their names; the mode is auto or required. at is
// where the request says so.
func (u *toolUse) ChooseAmong(at wire.Path, mode string, names []string, tools []Tool,
	m *Model) *wire.Error {
	if tools == nil {
		return ToolsMissing()
	}
	choice := autoTools
	switch mode {
	case "auto":
		if bad := m.checkAuto(); bad != nil {
			return bad
		}
	case "required":
		choice = someTool
	default:
		return wire.BadRequest("tool_choice", "`%s` must be auto or required, got %q",
			at.Member("mode"), wire.Clip(mode))
	}
	for _, name := range names {
		if bad := checkNamedTool(name, tools); bad != nil {
			return bad
		}
	}
	if len(names) == 0 {
		return wire.BadRequest("tool_choice", "`%s` must name a tool", at.Member("tools"))
	}
	u.choice, u.allowed = choice, names
	return nil
}

// ToolsMissing is the error of a tool_choice where there are no tools.
func ToolsMissing() *wire.Error {
	return wire.BadRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
}

// checkAuto refuses tool_choice auto where nothing would read the calls.
func (m *Model) checkAuto() *wire.Error {
	switch {
	case !m.flags.EnableAutoToolChoice:
		return wire.BadRequest("tool_choice",
			`"auto" tool choice requires --enable-auto-tool-choice, which this server has off`)
	case m.format == nil:
		return wire.BadRequest("tool_choice",
			`"auto" tool choice requires --tool-call-parser: the chat template of this model does `+
				"not show how it writes calls. Set that flag, "+
				`or tool_choice to "none" to give the tools to the chat template only.`)
	}
	return nil
}

// checkNamedTool refuses the name of a tool that there is not.
func checkNamedTool(name string, tools []Tool) *wire.Error {
	if name == "" {
		return wire.BadRequest("tool_choice",
			"Invalid `tool_choice`! Correct usage: `{\"type\": \"function\", \"function\": "+
				"{\"name\": \"my_function\"}}`")
	}
	if !slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == name }) {
		return wire.BadRequest("tool_choice",
			"The tool specified in `tool_choice` does not match any of the specified `tools`")
	}
	return nil
}

// toolName is what the name of a function looks like. Anthropic's may have 128 characters, and
// those of MCP servers (mcp__plugin_…__…) come near.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,128}$`)

// checkTools wants of tools what vLLM wants before the template sees them.
func checkTools(tools []Tool) *wire.Error {
	seen := map[string]bool{}
	for i, t := range tools {
		switch {
		case t.Name == "":
			return wire.BadRequest("tools", "`tools[%d]` must be an object with function.name", i)
		case !toolName.MatchString(t.Name):
			return wire.BadRequest("tools", "`tools[%d].function.name` must be 1 to 128 letters, "+
				"digits, underscores, dots and dashes, got %q", i, wire.Clip(t.Name))
		case t.parameters != nil && t.parameters[0] != '{':
			return wire.BadRequest("tools", "`tools[%d].function.parameters` must be an object, "+
				"got %s", i, wire.Describe(t.parameters))
		case seen[t.Name]:
			return wire.BadRequest("tools",
				"`tools[%d].function.name` is %q, as that of another tool", i, t.Name)
		}
		seen[t.Name] = true
	}
	if len(tools) == 0 {
		return wire.BadRequest("tools",
			"`tools` must not be an empty array. Either provide at least one tool or omit the "+
				"field entirely.")
	}
	return nil
}

// parameterTypes says which types the parameters of functions may have. It reads the schema of a
// tool when that is called.
func parameterTypes(tools []Tool) func(function, parameter string) typed.Types {
	known := map[string]map[string]typed.Types{}
	return func(function, parameter string) typed.Types {
		types, ok := known[function]
		if !ok {
			for _, t := range tools {
				if t.Name == function && t.parameters != nil {
					types = schema.Types(string(t.parameters))
				}
			}
			known[function] = types
		}
		return types[parameter]
	}
}
