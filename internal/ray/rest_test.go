package ray_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
)

func TestREST(t *testing.T) {
	table := func(body string) string {
		return `{"result":true,"msg":"","data":{"result":{"total":9,"num_filtered":1,"result":` +
			body + `}}}`
	}
	var query, header string
	answers := map[string]struct {
		code int
		body string
	}{
		"/api/v0/actors": {200,
			table(`[{"actor_id":"a","state":"ALIVE","pid":7,"num_restarts":"0","unknown":{}}]`)},
		"/api/v0/nodes": {200, `{"result":false,"msg":"the GCS is slow","data":null}`},
		"/api/v0/placement_groups": {200,
			`{"result":true,"data":{"result":{"num_filtered":2,"result":[{}]}}}`},
		"/api/version": {200, `<html>`},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, header = r.URL.RawQuery, r.Header.Get("Authorization")
		a, found := answers[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(a.code)
		fmt.Fprint(w, a.body)
	}))
	defer server.Close()
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".ray"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".ray", "auth_token"), []byte("of the file\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(home, "other")
	if err := os.WriteFile(other, []byte(" of the path "), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, env := range map[string][]string{
		"":                   {"HOME=/nonexistent"},
		"Bearer of the file": {"HOME=" + home},
		"Bearer of the path": {"HOME=" + home, "RAY_AUTH_TOKEN_PATH=" + other},
		"Bearer itself": {"HOME=" + home, "RAY_AUTH_TOKEN_PATH=" + other,
			"RAY_AUTH_TOKEN=replaced", "RAY_AUTH_TOKEN=itself"},
	} {
		rest := ray.NewREST(ray.RESTOptions{Dashboard: strings.TrimPrefix(server.URL, "http://"),
			Env: env})
		actors, err := rest.Actors(within(t), "ALIVE")
		if err != nil || len(actors) != 1 || actors[0].ID != "a" || actors[0].PID != 7 {
			t.Errorf("actors %+v, %v", actors, err)
		}
		if header != want {
			t.Errorf("header %q, want %q", header, want)
		}
		if query != "detail=1&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE&"+
			"limit=10000" {
			t.Errorf("query %q", query)
		}
	}
	rest := ray.NewREST(ray.RESTOptions{Dashboard: server.URL + "/", Env: []string{}})
	if _, err := rest.Nodes(within(t), ""); err == nil ||
		!strings.Contains(err.Error(), "the GCS is slow") {
		t.Errorf("nodes: %v", err)
	}
	if _, err := rest.PlacementGroups(within(t), ""); err == nil ||
		!strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("groups: %v", err)
	}
	if _, err := rest.Version(within(t)); err == nil ||
		!strings.Contains(err.Error(), "/api/version") {
		t.Errorf("version: %v", err)
	}
	for code, auth := range map[int]bool{401: true, 403: true, 500: false} {
		answers["/api/version"] = struct {
			code int
			body string
		}{code, strings.Repeat("no ", 1000)}
		_, err := rest.Version(within(t))
		var status *ray.StatusError
		if !errors.As(err, &status) || status.Code != code || errors.Is(err, ray.ErrAuth) != auth ||
			len(err.Error()) > 600 {
			t.Errorf("%d: %v", code, err)
		}
	}
	server.Close()
	if _, err := rest.Version(within(t)); err == nil {
		t.Error("no server")
	}
}
