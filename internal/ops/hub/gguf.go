package hub

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// usualTag is the quantisation of a repository of which none is asked for, as in llama.cpp and
// Ollama.
const usualTag = "Q4_K_M"

func isGGUF(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".gguf") }

// onlyGGUF says that a repository has weights in GGUF and none in safetensors that can be read.
func onlyGGUF(names []string) bool {
	return !slices.Contains(names, singleWeights) && !slices.Contains(names, weightIndex) &&
		slices.ContainsFunc(names, isGGUF)
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// validTag refuses what stands behind a colon and cannot be a quantisation.
func validTag(model, tag string) error {
	if strings.Contains(model, ":") && !tagPattern.MatchString(tag) {
		return fmt.Errorf("model %q: %q is not the name of a quantisation, as Q4_K_M in "+
			"org/name:Q4_K_M", model, tag)
	}
	return nil
}

// part is the end of the name of one of several files.
var part = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.(?i:gguf)$`)

// selectGGUF picks the files of one quantisation, in their order. A tag is found in the name of a
// file, or of its folder, whatever their case; without one it is Q4_K_M, or the only one there is.
func selectGGUF(names []string, tag string) ([]string, error) {
	models := map[string][]string{} // files by what they have in common
	for _, name := range names {
		if !isGGUF(name) || strings.HasPrefix(strings.ToLower(path.Base(name)), "mmproj") {
			continue
		}
		stem := part.ReplaceAllString(name, "")
		models[stem] = append(models[stem], name)
	}
	var all, found []string
	for stem := range models {
		all = append(all, stem)
		if hasTag(stem, tag) || tag == "" && hasTag(stem, usualTag) {
			found = append(found, stem)
		}
	}
	slices.Sort(all)
	slices.Sort(found)
	if tag == "" && len(all) == 1 {
		found = all
	}
	if models[tag] != nil { // the name of a file of a bucket
		found = []string{tag}
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("the repository has no model in GGUF%s", otherWeights(names))
	case len(found) == 0 && tag == "":
		return nil, fmt.Errorf("the repository has no %s among its models in GGUF: say which, as "+
			"in org/name:Q8_0 (there are %s)", usualTag, strings.Join(all, ", "))
	case len(found) == 0:
		return nil, fmt.Errorf("the repository has no model in GGUF for %s (there are %s)", tag,
			strings.Join(all, ", "))
	case len(found) > 1:
		return nil, fmt.Errorf("the repository has several models in GGUF for %s: %s", tag,
			strings.Join(found, ", "))
	}
	files := models[found[0]]
	slices.Sort(files)
	return files, nil
}

// hasTag tells whether a name has a tag between others of its kind: Q4_K is not in m-Q4_K_M.gguf.
func hasTag(stem, tag string) bool {
	if tag == "" {
		return false
	}
	lower, want := strings.ToLower(stem), strings.ToLower(tag)
	isWord := func(b byte) bool { return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' }
	for at := 0; ; at++ {
		next := strings.Index(lower[at:], want)
		if next < 0 {
			return false
		}
		at += next
		end := at + len(want)
		if (at == 0 || !isWord(lower[at-1])) && (end == len(lower) || !isWord(lower[end])) {
			return true
		}
	}
}

// namesIn are the files of a snapshot.
func namesIn(dir string) (names []string) {
	_ = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if name, err := filepath.Rel(dir, file); err == nil {
				names = append(names, filepath.ToSlash(name))
			}
		}
		return nil
	})
	return names
}

// wholeGGUF are the models in GGUF that a snapshot has all files of, by their names without what
// numbers the files, sorted.
func wholeGGUF(dir string) []string {
	found := map[string]int{}
	want := map[string]int{}
	for _, name := range namesIn(dir) {
		if !isGGUF(name) || !isFile(filepath.Join(dir, name), -1) {
			continue
		}
		stem, of := strings.TrimSuffix(name, filepath.Ext(name)), 1
		if m := part.FindStringSubmatch(name); m != nil {
			stem = part.ReplaceAllString(name, "")
			of, _ = strconv.Atoi(m[2]) // five digits
		}
		found[stem]++
		want[stem] = of
	}
	maps.DeleteFunc(found, func(stem string, n int) bool { return n != want[stem] })
	return slices.Sorted(maps.Keys(found))
}

// cachedGGUF are the files of a snapshot for a tag, if all of them are there; nil otherwise.
func cachedGGUF(dir, tag string) []string {
	names := namesIn(dir)
	if tag == "" && !onlyGGUF(names) {
		return nil
	}
	files, err := selectGGUF(names, tag)
	if err != nil {
		return nil
	}
	want := 1
	if m := part.FindStringSubmatch(files[0]); m != nil {
		want, _ = strconv.Atoi(m[2]) // five digits
	}
	for _, name := range files {
		if !isFile(filepath.Join(dir, name), -1) {
			return nil
		}
	}
	if len(files) != want {
		return nil
	}
	return files
}
