package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/eagleray/eagleray/web"
)

// Result is a file of results of benchmarks: a JSON object, or several one after the other.
type Result struct {
	// Name is what the report calls it.
	Name string
	JSON []byte
}

// WriteReport writes one HTML file that compares results as the page does. It needs no other file
// and no network. Generated texts are left out.
func WriteReport(w io.Writer, results []Result) error {
	type file struct {
		Name string `json:"name"`
		Text string `json:"text"`
	}
	files := make([]file, len(results))
	for i, r := range results {
		text, err := trim(r.JSON)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		files[i] = file{r.Name, text}
	}
	data, err := json.Marshal(files) // with < as \u003c: nothing in it can end its element
	if err != nil {
		return err
	}
	page, err := web.Files.ReadFile(reportPage)
	if err != nil {
		return err
	}
	style, err := concat("vendor/uplot/uPlot.min.css", "css/window.css")
	if err != nil {
		return err
	}
	plots, err := concat("js/locale.js", "vendor/uplot/uPlot.iife.min.js")
	if err != nil {
		return err
	}
	b := &bundle{seen: map[string]bool{}}
	if err := b.add("report.js"); err != nil {
		return err
	}
	script := b.text.String()
	_, err = strings.NewReplacer("{{policy}}", "default-src 'none'; style-src "+hashOf(style)+
		"; script-src "+hashOf(plots)+" "+hashOf(script)+"; base-uri 'none'; form-action 'none'",
		"{{style}}", style, "{{plots}}", plots, "{{script}}", script, "{{data}}", string(data)).
		WriteString(w, string(page))
	return err
}

// trim reads the objects of a file and returns them one a line, without what models have written.
func trim(raw []byte) (string, error) {
	var out bytes.Buffer
	d := json.NewDecoder(bytes.NewReader(raw))
	for {
		var result map[string]json.RawMessage
		err := d.Decode(&result)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("not a result of a benchmark: %w", err)
		}
		if result == nil {
			return "", errors.New("not a result of a benchmark: null")
		}
		delete(result, "generated_texts")
		line, err := json.Marshal(result)
		if err != nil {
			return "", err
		}
		out.Write(append(line, '\n'))
	}
	if out.Len() == 0 {
		return "", errors.New("not a result of a benchmark: empty")
	}
	return out.String(), nil
}

func concat(names ...string) (string, error) {
	var all strings.Builder
	for _, name := range names {
		body, err := web.Files.ReadFile(name)
		if err != nil {
			return "", err
		}
		all.Write(body)
		all.WriteByte('\n')
	}
	return all.String(), nil
}

// hashOf is how a policy names an inline script or style.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// bundle joins modules into one script, since those of a file on disk cannot import others. Each
// becomes a function that returns what the module exports.
type bundle struct {
	text strings.Builder
	seen map[string]bool
}

var (
	importOf = regexp.MustCompile(`(?m)^import (\{[^}]+\}) from "\./([a-z]+)\.js";$`)
	exportOf = regexp.MustCompile(`(?m)^export ((?:async )?function\*?|const|class) (\w+)`)
	// module finds both words where they begin a line in a way that the two above do not know.
	module = regexp.MustCompile(`(?m)^(import|export)\b.*`)
)

// add appends a module after those it imports.
func (b *bundle) add(name string) error {
	if b.seen[name] {
		return nil
	}
	b.seen[name] = true
	body, err := web.Files.ReadFile(path.Join("js", name))
	if err != nil {
		return err
	}
	for _, m := range importOf.FindAllSubmatch(body, -1) {
		if err := b.add(string(m[2]) + ".js"); err != nil {
			return err
		}
	}
	var exports []string
	for _, m := range exportOf.FindAllSubmatch(body, -1) {
		exports = append(exports, string(m[2]))
	}
	body = importOf.ReplaceAll(body, []byte("const $1 = ${2}Module;"))
	body = exportOf.ReplaceAll(body, []byte("$1 $2"))
	if left := module.Find(body); left != nil {
		return fmt.Errorf("js/%s: %q cannot be joined", name, left)
	}
	fmt.Fprintf(&b.text, "const %sModule = (() => {\n%sreturn { %s };\n})();\n",
		strings.TrimSuffix(name, ".js"), body, strings.Join(exports, ", "))
	return nil
}
