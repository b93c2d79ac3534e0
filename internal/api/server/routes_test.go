package server

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct{ pattern, path, want string }{
		{"/a/{id}", "/a/1", "id=1"},
		{"/a/{id}", "/a/", "none"},
		{"/a/{id}", "/a", "none"},
		{"/a/{id}", "/a/1/", "none"},
		{"/a/{id}", "/a/1/2", "none"},
		{"/a/{id}", "/b/1", "none"},
		{"/a/{id}", "a/1", "none"},
		{"/a/{id}", "", "none"},
		{"/a/{id}/b", "/a/x y/b", "id=x y"},
		{"/a/{id}/b", "/a/1/c", "none"},
		{"/a/{id}/b", "/a//b", "none"},
		{"/a/{id}/b", "/a/1/b/", "none"},
		{"/a/{id}/{k}", "/a/{id}/2", "id={id} k=2"},
		{"/m/{name...}", "/m/a/b/", "name=a/b/"},
		{"/m/{name...}", "/m/", "none"},
	} {
		found := map[string]string{}
		got := "none"
		if newResource(c.pattern, false).match(c.path, func(name,
			text string) {
			found[name] = text
		}) {
			got = ""
			for i, name := range slices.Sorted(maps.Keys(found)) {
				if i > 0 {
					got += " "
				}
				got += fmt.Sprintf("%s=%s", name, found[name])
			}
		}
		if got != c.want {
			t.Errorf("%s of %s: %s instead of %s", c.path, c.pattern, got, c.want)
		}
	}
}
