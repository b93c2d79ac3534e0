package admin

import (
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
)

// modes is the parameter that says what becomes of the requests in flight.
var modes = server.Param{Name: "mode", Type: "string",
	Values: []string{string(state.Abort), string(state.Wait), string(state.Keep)}}

// trainerDocs describe the routes of a trainer. Their answers are documents of few members.
var trainerDocs = map[string]server.Doc{
	"/sleep": {Summary: "Release the memory of the engines",
		Query: []server.Param{{Name: "level", Type: "integer"}, modes}},
	"/wake_up": {Summary: "Reserve the memory of the engines again",
		Query: []server.Param{{Name: "tags", Type: "string", Values: state.Tags()}}},
	"/is_sleeping": {Summary: "Say whether the engines sleep", Answer: map[string]any{}},
	"/pause": {Summary: "Stop the engines between steps", Answer: map[string]string{},
		Query: []server.Param{modes, {Name: "clear_cache", Type: "boolean"}}},
	"/resume":    {Summary: "Let the engines go on", Answer: map[string]string{}},
	"/is_paused": {Summary: "Say whether the engines are paused", Answer: map[string]any{}},
	"/abort_requests": {Summary: "End requests: those of these ids, or all",
		Answer: map[string]string{}, Body: &server.Body{Value: struct {
			IDs []string `json:"request_ids,omitempty"`
		}{}}},
	"/init_weight_transfer_engine": {Summary: "Open a session in which weights are sent",
		Answer: sessionAnswer{}, Body: &server.Body{Value: struct {
			Info initInfo `json:"init_info,omitzero"`
		}{}}},
	"/start_weight_update": {Summary: "Begin an update of the weights",
		Answer: map[string]string{}, Body: &server.Body{Value: struct {
			CheckpointFormat bool `json:"is_checkpoint_format,omitempty"`
		}{}}},
	"/update_weights": {Summary: "Send weights of an update", Answer: map[string]string{},
		Body: &server.Body{Value: struct {
			Info updateInfo `json:"update_info"`
		}{}}},
	"/finish_weight_update": {Summary: "Have all ranks compute with the new weights",
		Answer: map[string]string{}, Body: &server.Body{Value: struct {
			Version string `json:"weight_version,omitempty"`
		}{}}},
	"/update_weight_version": {Summary: "Name the weights", Answer: map[string]string{},
		Body: &server.Body{Value: struct {
			Version string `json:"new_version"`
		}{}}},
	"/weight_info": {Summary: "Describe the weights", Answer: rlhf.Info{}},
	"/reset_prefix_cache": {Summary: "Empty the prefix cache", Answer: map[string]bool{},
		Query: []server.Param{{Name: "reset_running_requests", Type: "boolean"},
			{Name: "reset_external", Type: "boolean"}}},
	"/collective_rpc": {Summary: "Call a method of every rank", Answer: map[string]any{},
		Body: &server.Body{Value: struct {
			Method  string  `json:"method"`
			Args    []any   `json:"args,omitempty"`
			Timeout float64 `json:"timeout,omitempty"`
		}{}}},
	"/get_world_size": {Summary: "Say how many ranks there are", Answer: map[string]int{},
		Query: []server.Param{{Name: "include_dp", Type: "boolean"}}},
}
