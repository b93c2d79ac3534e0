// Package compat says of flags, routes and metrics how they stand to vLLM's. The tables are beside
// what they describe: config.Compat, api.Compat, metrics.Compat; eagleray compat prints them.
package compat

import "sort"

// Status is how a name stands to vLLM's of the same name.
type Status string

const (
	// Same works as in vLLM.
	Same Status = "same"
	// Differs works, with the difference that the note names.
	Differs Status = "differs"
	// Ours is not vLLM's.
	Ours Status = "ours"
	// NoEffect is accepted with a warning, and changes nothing.
	NoEffect Status = "no effect"
	// Refused is known and not there yet: flags end the start, paths answer 404.
	Refused Status = "refused"
)

// Entry is one name.
type Entry struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Note   string `json:"note,omitempty"`
}

// Sort orders entries by their names.
func Sort(list []Entry) {
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
}
