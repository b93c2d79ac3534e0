package config

// Setting is the value of a flag, or another thing that must be equal on all nodes.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
