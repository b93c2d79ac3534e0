package ray_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// TestOtherVersion: a connect that fails names both versions of Ray when the cluster's dashboard
// tells its own, and at least ours when not.
func TestOtherVersion(t *testing.T) {
	dashboard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"ray_version":"9.9.9","ray_commit":"c","session_name":"s"}`))
	}))
	defer dashboard.Close()
	same := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"ray_version":"2.60.0","ray_commit":"c","session_name":"s"}`))
	}))
	defer same.Close()
	for _, c := range []struct {
		name, env string
		fault     frame.Fault
		want, not []string
	}{
		{"named", "RAY_API_SERVER_ADDRESS=" + dashboard.URL,
			frame.Fault{Class: "ConnectionError", Message: "no temp_dir"},
			[]string{"runs Ray 9.9.9", "has Ray " + "2.60.0", "--ray-python", "no temp_dir"}, nil},
		{"silent dashboard", "RAY_API_SERVER_ADDRESS=127.0.0.1:1",
			frame.Fault{Class: "ConnectionError", Message: "no temp_dir"},
			[]string{"no temp_dir", "has Ray " + "2.60.0"}, []string{"9.9.9"}},
		{"unreachable", "RAY_API_SERVER_ADDRESS=" + dashboard.URL,
			frame.Fault{Class: "Unreachable", Message: "no Ray cluster at"},
			[]string{"no Ray cluster at"}, []string{"9.9.9", "has Ray"}},
		{"not a node", "RAY_API_SERVER_ADDRESS=" + dashboard.URL,
			frame.Fault{Class: "Exception", Message: "No node info found matching attributes: ''"},
			[]string{"no node of the cluster at 127.0.0.1:2", "--node-ip"},
			[]string{"9.9.9", "has Ray"}},
		{"same version", "RAY_API_SERVER_ADDRESS=" + same.URL,
			frame.Fault{Class: "ConnectionError", Message: "no temp_dir"},
			[]string{"no temp_dir"}, []string{"has Ray"}},
		{"another reason", "RAY_API_SERVER_ADDRESS=127.0.0.1:1",
			frame.Fault{Class: "Cancelled", Message: "cancelled"},
			[]string{"cancelled"}, []string{"has Ray"}},
		{"no address", "RAY_API_SERVER_ADDRESS=" + dashboard.URL,
			frame.Fault{Class: "ValueError", Message: "x is no GCS address"},
			[]string{"no GCS address"}, []string{"9.9.9", "has Ray"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fake.New()
			f.FailNext("connect", c.fault)
			client, err := ray.Start(t.Context(), ray.Options{Conn: f.Dial(), Env: []string{c.env}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close(t.Context())
			_, err = client.Connect(t.Context(), ray.ConnectOptions{Address: "127.0.0.1:2"})
			if err == nil {
				t.Fatal("connected")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			for _, w := range c.not {
				if strings.Contains(err.Error(), w) {
					t.Errorf("%q has %q", err, w)
				}
			}
		})
	}
}
