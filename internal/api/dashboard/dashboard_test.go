package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/web"
)

// maxPage is how many bytes all files of the page may have together.
const maxPage = 300 << 10

// TestFiles holds what is promised of the page: small, its own files only, nothing inline.
func TestFiles(t *testing.T) {
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Names of XML namespaces are never asked for; others' scripts say where they come from.
	external := regexp.MustCompile(`(?:https?:)?//[A-Za-z0-9]`)
	allowed := []string{"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot",
		"https://github.com/markedjs/marked"}
	inline := regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\son[a-z]+=|\sstyle=|javascript:`)
	total := 0
	for name, f := range p.files {
		body := string(f.body)
		total += len(body)
		for _, a := range allowed {
			body = strings.ReplaceAll(body, a, "")
		}
		for line := range strings.Lines(body) {
			comment := strings.HasPrefix(strings.TrimSpace(line), "//")
			if external.MatchString(line) && !comment {
				t.Errorf("%s has an address: %.120s", name, line)
			}
		}
		if name == "" && inline.MatchString(body) {
			t.Errorf("the page has something inline: %q", inline.FindString(body))
		}
		for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "eval(",
			"new Function", "document.write"} {
			if strings.Contains(body, sink) {
				t.Errorf("%s has %s", name, sink)
			}
		}
	}
	if total > maxPage {
		t.Errorf("the page has %d bytes, more than %d", total, maxPage)
	}
	t.Logf("%d files, %d bytes", len(p.files), total)
	// What the page refers to is there.
	refs := regexp.MustCompile(`(?:href|src)="([^"#][^"]*)"`)
	for _, ref := range refs.FindAllSubmatch(p.files[""].body, -1) {
		if p.files[strings.TrimPrefix("/"+string(ref[1]), Prefix)] == nil {
			t.Errorf("the page refers to %s", ref[1])
		}
	}
	imports := regexp.MustCompile(`from "(\.[^"]+)"`)
	for at, f := range p.files {
		for _, ref := range imports.FindAllSubmatch(f.body, -1) {
			if p.files[path.Join(path.Dir(at), string(ref[1]))] == nil {
				t.Errorf("%s imports %s", at, ref[1])
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]string{
		"":                    "text/html; charset=utf-8",
		"js/main.js":          "text/javascript; charset=utf-8",
		"css/window.css":      "text/css; charset=utf-8",
		"icon.svg":            "image/svg+xml",
		"uplot/uPlot.min.css": "text/css; charset=utf-8",
	} {
		rec := httptest.NewRecorder()
		if !p.File(rec, httptest.NewRequest("GET", Prefix+path, nil), path) {
			t.Fatalf("there is no file %q", path)
		}
		h := rec.Header()
		if rec.Code != 200 || h.Get("Content-Type") != kind || rec.Body.Len() == 0 {
			t.Errorf("%s answered %d %q with %d bytes", path, rec.Code, h.Get("Content-Type"),
				rec.Body.Len())
		}
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'",
			"connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
			"require-trusted-types-for 'script'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy %q lacks %s", path, csp, want)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
			t.Errorf("%s: the policy is %q", path, csp)
		}
		if h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: headers %v", path, h)
		}
		again := httptest.NewRequest("GET", Prefix+path, nil)
		again.Header.Set("If-None-Match", h.Get("ETag"))
		rec = httptest.NewRecorder()
		if !p.File(rec, again, path) || rec.Code != http.StatusNotModified || rec.Body.Len() != 0 {
			t.Errorf("%s: the second time answered %d", path, rec.Code)
		}
		head := httptest.NewRecorder()
		if !p.File(head, httptest.NewRequest("HEAD", Prefix+path, nil), path) ||
			head.Body.Len() != 0 || head.Header().Get("Content-Length") == "" {
			t.Errorf("%s: HEAD answered %d with %d bytes", path, head.Code, head.Body.Len())
		}
	}
}

// TestEmbedded compares what is embedded with the folder it comes from, both ways.
func TestEmbedded(t *testing.T) {
	const folder = "../../../web"
	embedded := map[string]bool{}
	err := fs.WalkDir(web.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		embedded[name] = true
		ours, err := web.Files.ReadFile(name)
		if err != nil {
			return err
		}
		theirs, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(ours, theirs) {
			t.Errorf("%s is embedded with other bytes", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if name = filepath.ToSlash(name); !embedded[name] && name != "web.go" {
			t.Errorf("%s is not embedded", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVendored holds that what others wrote is what their registry has.
func TestVendored(t *testing.T) {
	for folder, want := range map[string]int{"vendor/uplot/": 3, "vendor/marked/": 2} {
		sums, err := web.Files.ReadFile(folder + "SHA256SUMS")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(sums)) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			body, err := web.Files.ReadFile(folder + name)
			if err != nil {
				t.Fatal(err)
			}
			if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != sum {
				t.Errorf("%s has the sum %x", name, got)
			}
			n++
		}
		if n != want {
			t.Errorf("%s: %d files have sums", folder, n)
		}
	}
}
