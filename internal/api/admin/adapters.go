package admin

import (
	"errors"
	"io"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine/adapters"
)

// loader answers the routes that load and unload adapters.
type loader struct {
	*server.Server
	control *adapters.Control
}

// AdapterRoutes are those of a server with adapters, for clients who may change which.
func AdapterRoutes(srv *server.Server, control *adapters.Control, allowed bool) []server.Route {
	l := loader{srv, control}
	load, unload := l.load, l.unload
	if !allowed {
		load, unload = mayNotLoad, mayNotLoad
	}
	return []server.Route{
		{Method: "POST", Path: "/v1/load_lora_adapter", Handler: load,
			Doc: server.Doc{Summary: "Load an adapter", Media: "text/plain",
				Body: server.Reads(decodeLoad, `{"lora_name":"sql","lora_path":"/adapters/sql"}`)}},
		{Method: "POST", Path: "/v1/unload_lora_adapter", Handler: unload,
			Doc: server.Doc{Summary: "Unload an adapter once its requests are done",
				Media: "text/plain",
				Body:  server.Reads(decodeUnload, `{"lora_name":"sql"}`)}},
	}
}

// mayNotLoad is the answer of a server whose adapters every client could change.
func mayNotLoad(http.ResponseWriter, *server.Request) error {
	return &wire.Error{Status: http.StatusForbidden,
		Message: "the adapters of this server are not changed by clients: start it with --api-key"}
}

// loadRequest is vLLM's.
type loadRequest struct {
	name, path string
	inPlace    bool
}

func decodeLoad(f *wire.Fields) (loadRequest, *wire.Error) {
	r := loadRequest{name: f.Text("lora_name"), path: f.Text("lora_path"),
		inPlace: f.OptBool("load_inplace", false)}
	f.OptString("base_model_name")
	if f.Err == nil && r.path == "" {
		f.Fail(wire.BadRequest("lora_path", "`lora_path` is empty"))
	}
	return r, f.Err
}

func decodeUnload(f *wire.Fields) (name string, bad *wire.Error) {
	name = f.Text("lora_name")
	f.OptInt("lora_int_id")
	return name, f.Err
}

// load answers POST /v1/load_lora_adapter.
func (l loader) load(w http.ResponseWriter, r *server.Request) error {
	f, err := l.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer f.Done()
	q, bad := decodeLoad(f)
	if bad != nil {
		return bad
	}
	if err := l.control.LoadFor(r.Context(), q.name, q.path, q.inPlace); err != nil {
		return adapterError(err, "lora_path")
	}
	return say(w, "Success: LoRA adapter '"+q.name+"' added successfully.")
}

// unload answers POST /v1/unload_lora_adapter.
func (l loader) unload(w http.ResponseWriter, r *server.Request) error {
	f, err := l.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer f.Done()
	name, bad := decodeUnload(f)
	if bad != nil {
		return bad
	}
	if err := l.control.Unload(r.Context(), name); err != nil {
		return adapterError(err, "lora_name")
	}
	return say(w, "Success: LoRA adapter '"+name+"' removed successfully.")
}

func say(w http.ResponseWriter, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, text)
	return err
}

// adapterError gives an error of adapters its status; param is the field that named the adapter.
func adapterError(err error, param string) error {
	var refused *adapters.Refused
	switch {
	case errors.Is(err, adapters.ErrUnknown):
		return &wire.Error{Status: http.StatusNotFound, Param: param, Message: err.Error()}
	case errors.As(err, &refused):
		return wire.BadRequest(param, "%s", err.Error())
	}
	return err
}
