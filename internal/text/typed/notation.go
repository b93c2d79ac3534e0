package typed

// Notation is a way of writing values that has other words and quotes than JSON.
type Notation struct {
	Name              string
	Null, True, False string
	// Quote stands on both sides of a text, which is as it is then, and keys that are words have
	// none; "" is the quotes of JSON, with its escapes for what needs one.
	Quote string
}

// The notations of families of models.
var (
	Python        = &Notation{Name: "python", Null: "None", True: "True", False: "False"}
	Gemma4        = &Notation{Name: "gemma4", Null: "null", True: "true", False: "false", Quote: `<|"|>`}
	FunctionGemma = &Notation{Name: "functiongemma", Null: "null", True: "true", False: "false",
		Quote: "<escape>"}
)

// NotationNamed returns the notation with a name, nil for none.
func NotationNamed(name string) *Notation {
	for _, n := range []*Notation{Python, Gemma4, FunctionGemma} {
		if n.Name == name {
			return n
		}
	}
	return nil
}
