package typed

import "strings"

// Style is a way of writing the members of an object with its texts as they are, without quotes:
// each member between tags.
type Style struct {
	// Name is xgrammar's, or of its kind where that has none.
	Name string
	// Begin stands before the key. Text and Other stand between the key and a value that is a
	// text, or not; End and Tail follow both, Sep stands between two members.
	Begin, Text, Other string
	End, Tail, Sep     string
	// Values is the notation of all values, texts too; nil is JSON for those that are no texts.
	Values *Notation
	// Marks are what no text may have in it: it would end there.
	Marks []string
}

// The styles of families of models.
var (
	QwenXML = &Style{Name: "qwen_xml", Begin: "<parameter=", Text: ">\n", Other: ">\n",
		End: "\n</parameter>", Tail: "\n",
		Marks: []string{"</parameter>", "\n<parameter=", "\n</function>"}}
	GLM = &Style{Name: "glm_xml", Begin: "<arg_key>", Text: "</arg_key>\n<arg_value>",
		Other: "</arg_key>\n<arg_value>", End: "</arg_value>", Tail: "\n",
		Marks: []string{"</arg_value>", "</tool_call>"}}
	GLM47 = &Style{Name: "glm47_xml", Begin: "<arg_key>", Text: "</arg_key><arg_value>",
		Other: "</arg_key><arg_value>", End: "</arg_value>",
		Marks: []string{"</arg_value>", "</tool_call>"}}
	DeepSeek = &Style{Name: "deepseek_xml", Begin: `<｜DSML｜parameter name="`,
		Text: `" string="true">`, Other: `" string="false">`, End: "</｜DSML｜parameter>",
		Tail: "\n", Marks: []string{"</｜DSML｜parameter>"}}
	MiniMax = &Style{Name: "minimax_xml", Begin: `<parameter name="`, Text: `">`, Other: `">`,
		End: "</parameter>", Tail: "\n", Marks: []string{"</parameter>"}}
	// PythonArguments are arguments by keyword.
	PythonArguments = &Style{Name: "python_arguments", Other: "=", Sep: ", ", Values: Python}
)

// StyleNamed returns the style with a name, nil for none.
func StyleNamed(name string) *Style {
	for _, s := range []*Style{QwenXML, GLM, GLM47, DeepSeek, MiniMax,
		PythonArguments} {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Tells says that the style itself tells texts from other values.
func (s *Style) Tells() bool { return s.Text != s.Other }

// CanHave says whether a key can be written.
func (s *Style) CanHave(key string) bool {
	if s.Values != nil {
		return isIdentifier(key)
	}
	return !strings.ContainsAny(key, "<>\"\n")
}

// isIdentifier is whether a text may be the name of an argument of Python's.
func isIdentifier(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= 0x80
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
