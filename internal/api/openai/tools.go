package openai

import (
	"encoding/json"
	"regexp"
	"slices"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/output"
)

// tool is a function that the answer may call.
type tool struct {
	name string
	// raw is the tool as chat templates know it: {"type":"function","function":{…}}.
	raw json.RawMessage
	// parameters is the schema of its arguments, nil for none.
	parameters json.RawMessage
	// strict says that calls are to keep to the schema although none has to be made.
	strict bool
}

// newTool takes a tool apart that is written as chat templates know it.
func newTool(raw []byte) tool {
	f := memberOf(raw, "function", '{')
	return tool{name: wire.UnquoteOr(memberOf(f, "name", '"'), ""), raw: raw,
		parameters: memberOf(f, "parameters", '{'), strict: string(memberOf(f, "strict", 't')) == "true"}
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

// decode reads tool_choice in OpenAI's dialect; tools is nil where there are none.
func (u *toolUse) decode(f *wire.Fields, m *model, tools []tool) {
	raw := f.Value("tool_choice")
	if raw == nil || raw[0] != '{' {
		f.Fail(u.chooseByWord(raw, tools, m))
		return
	}
	if wire.TypeOf(raw) != "allowed_tools" {
		f.Fail(u.chooseOne(newTool(raw).name, tools, m))
		return
	}
	at := wire.Path("tool_choice").Member("allowed_tools")
	raw = memberOf(raw, "allowed_tools", '{')
	var names []string
	for _, t := range jsonx.Elements(memberOf(raw, "tools", '[')) {
		names = append(names, newTool(t).name)
	}
	f.Fail(u.chooseAmong(at, wire.UnquoteOr(memberOf(raw, "mode", '"'), ""), names, tools, m))
}

// chooseByWord obeys a tool_choice that is none, auto or required, and auto where tools are given and
// no choice (nil).
func (u *toolUse) chooseByWord(raw []byte, tools []tool, m *model) *wire.Error {
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
		return toolsMissing()
	case choice == "auto":
		u.choose(autoTools, nil, tools, m)
		return m.checkAuto()
	case choice == "required":
		u.choose(someTool, nil, tools, m)
		return nil
	}
	return wire.BadRequest("tool_choice", "Invalid value for `tool_choice`: %s! "+
		"Only named tools, \"none\", \"auto\" or \"required\" are supported.", wire.Clip(string(raw)))
}

// chooseOne has the answer call a tool, once.
func (u *toolUse) chooseOne(name string, tools []tool, m *model) *wire.Error {
	if tools == nil {
		return toolsMissing()
	}
	u.choose(oneTool, []string{name}, tools, m)
	return checkNamedTool(name, tools)
}

// chooseAmong restricts the calls to tools by their names; the mode is auto or required. at is where
// the request says so.
func (u *toolUse) chooseAmong(at wire.Path, mode string, names []string, tools []tool,
	m *model) *wire.Error {
	if tools == nil {
		return toolsMissing()
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
		return wire.BadRequest("tool_choice", "`%s` must be auto or required, got %q", at.Member("mode"),
			wire.Clip(mode))
	}
	for _, name := range names {
		if bad := checkNamedTool(name, tools); bad != nil {
			return bad
		}
	}
	if len(names) == 0 {
		return wire.BadRequest("tool_choice", "`%s` must name a tool", at.Member("tools"))
	}
	u.choose(choice, names, tools, m)
	return nil
}

func (u *toolUse) choose(choice toolChoice, allowed []string, tools []tool, m *model) {
	u.choice, u.allowed = choice, allowed
	if m.format != nil && m.format.Typed {
		u.types = parameterTypes(tools)
	}
}

func toolsMissing() *wire.Error {
	return wire.BadRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
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

// checkNamedTool refuses the name of a tool that there is not.
func checkNamedTool(name string, tools []tool) *wire.Error {
	if name == "" {
		return wire.BadRequest("tool_choice",
			"Invalid `tool_choice`! Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`")
	}
	if !slices.ContainsFunc(tools, func(t tool) bool { return t.name == name }) {
		return wire.BadRequest("tool_choice",
			"The tool specified in `tool_choice` does not match any of the specified `tools`")
	}
	return nil
}

// toolName is what the name of a function looks like.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// decodeTools reads the tools in OpenAI's dialect.
func (c *conversation) decodeTools(f *wire.Fields) {
	raw := f.Array("tools")
	if raw == nil {
		return
	}
	tools := []tool{}
	for _, t := range jsonx.Elements(raw) {
		tools = append(tools, newTool(t))
	}
	f.Fail(c.setTools(tools))
}

// setTools wants of the tools what vLLM wants before the template sees them.
func (c *conversation) setTools(tools []tool) *wire.Error {
	c.tools = tools
	seen := map[string]bool{}
	for i, t := range tools {
		switch {
		case t.name == "":
			return wire.BadRequest("tools", "`tools[%d]` must be an object with function.name", i)
		case !toolName.MatchString(t.name):
			return wire.BadRequest("tools", "`tools[%d].function.name` must be 1 to 64 letters, "+
				"digits, underscores, dots and dashes, got %q", i, wire.Clip(t.name))
		case seen[t.name]:
			return wire.BadRequest("tools", "`tools[%d].function.name` is %q, as that of another tool",
				i, t.name)
		}
		seen[t.name] = true
	}
	if len(tools) == 0 {
		return wire.BadRequest("tools", "`tools` must not be an empty array. Either provide at least "+
			"one tool or omit the field entirely.")
	}
	return nil
}
