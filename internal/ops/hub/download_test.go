package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const weights = "model.safetensors"

// cut sends the bytes of data from the request's range on, announces all of them, and drops the
// connection after n.
func cut(w http.ResponseWriter, r *http.Request, data []byte, n int) {
	from := 0
	if v := r.Header.Get("Range"); v != "" {
		from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(v, "bytes="), "-"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	w.Write(data[from:min(from+n, len(data))])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// TestResume drops every body after 700 kB: the file is put together from what came.
func TestResume(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server == "CDN" && f.count("CDN") <= 4 {
			cut(w, r, repo[weights], 700_000)
		}
		return false
	}
	dir := f.mustResolve(f.options())
	checkFolder(t, dir, pick(repo, plainWanted...))
	var got []string
	for _, r := range f.requests {
		if strings.HasPrefix(r, "CDN") {
			got = append(got, strings.TrimPrefix(r, "CDN GET /model.safetensors"))
		}
	}
	if want := []string{"", " bytes=700000-", " bytes=1400000-", " bytes=2100000-",
		" bytes=2800000-"}; !slices.Equal(got, want) {
		t.Errorf("ranges %q, want %q", got, want)
	}
}

// TestResumeLater gives up in the first call and goes on in the second, as after a killed process.
func TestResumeLater(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server != "CDN" {
			return false
		}
		if f.count("CDN") == 1 {
			cut(w, r, repo[weights], 1_000_000)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	if _, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Fatalf("error %v", err)
	}
	snapshot := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--model-1.0", "snapshots",
		testCommit)
	checkFolder(t, snapshot, pick(repo, slices.DeleteFunc(slices.Clone(plainWanted),
		func(n string) bool { return n == weights })...))
	offline := f.options()
	offline.Offline = true
	if _, err := f.resolve(offline); !errors.Is(err, ErrOffline) {
		t.Errorf("offline with half a download: %v", err)
	}
	f.intercept = nil
	opt := f.options()
	first := int64(-1)
	opt.Progress = func(p Progress) {
		if first < 0 {
			first = p.Done
		}
	}
	checkFolder(t, f.mustResolve(opt), pick(repo, plainWanted...))
	if f.count("CDN GET /model.safetensors bytes=1000000-") < 2 || first < 1_000_000 {
		t.Errorf("the second call began at byte %d: %q", first, f.requests)
	}
}

// TestRangeIgnored resumes with servers that do not do as asked.
func TestRangeIgnored(t *testing.T) {
	for name, second := range map[string]func(w http.ResponseWriter, r *http.Request, data []byte){
		"whole file": func(w http.ResponseWriter, r *http.Request,
			data []byte) {
			w.Write(data)
		},
		"not satisfied": func(w http.ResponseWriter, r *http.Request,
			data []byte) {
			w.WriteHeader(416)
		},
		"other range": func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 5-%d/%d", len(data)-1, len(data)))
			w.WriteHeader(206)
			w.Write(data[5:])
		},
		"no range": func(w http.ResponseWriter, r *http.Request,
			data []byte) {
			w.WriteHeader(206)
		},
		"other size": func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Range", "bytes 700000-799999/800000")
			w.WriteHeader(206)
		},
	} {
		t.Run(name, func(t *testing.T) {
			repo := plainRepo()
			f := newFakeHub(t, repo)
			f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
				if server != "CDN" {
					return false
				}
				switch f.count("CDN") {
				case 1:
					cut(w, r, repo[weights], 700_000)
				case 2:
					second(w, r, repo[weights])
					return true
				}
				return false
			}
			checkFolder(t, f.mustResolve(f.options()), pick(repo, plainWanted...))
		})
	}
}

// TestCorrupt serves other bytes than announced: nothing of the file is left.
func TestCorrupt(t *testing.T) {
	for _, victim := range []string{weights, "tokenizer.json"} {
		t.Run(victim, func(t *testing.T) {
			repo := plainRepo()
			f := newFakeHub(t, repo)
			served := 0
			f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/"+victim) || r.Method != http.MethodGet ||
					server == "HUB" && victim == weights {
					return false
				}
				f.mu.Lock()
				served++
				f.mu.Unlock()
				bad := bytes.Clone(repo[victim])
				bad[len(bad)/2] ^= 1
				w.Write(bad)
				return true
			}
			dir, err := f.resolve(f.options())
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), victim) {
				t.Errorf("%s, error %v", dir, err)
			}
			if served != 2 {
				t.Errorf("the file was asked for %d times, want twice", served)
			}
			root := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--model-1.0")
			if _, err := os.Lstat(filepath.Join(root, "snapshots", testCommit,
				victim)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the snapshot has the file: %v", err)
			}
			if _, err := os.Stat(filepath.Join(root, "blobs", etagOf(victim,
				repo[victim]))); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the cache has the blob: %v", err)
			}
			if left := leftovers(t, root); slices.Contains(left, etagOf(victim,
				repo[victim])+".incomplete") {
				t.Errorf("left over: %v", left)
			}
			if _, err := os.Stat(filepath.Join(root, "refs", "main")); !errors.Is(err,
				fs.ErrNotExist) {
				t.Errorf("a reference leads to an incomplete snapshot: %v", err)
			}
			f.intercept = nil
			checkFolder(t, f.mustResolve(f.options()), pick(repo, plainWanted...))
		})
	}
}

// TestCorruptPartial finds rubbish left under the partial file's name.
func TestCorruptPartial(t *testing.T) {
	for name, left := range map[string][]byte{"short": pattern(100)[50:], "as long": make([]byte,
		3_000_000), "longer": make([]byte, 3_000_001)} {
		t.Run(name, func(t *testing.T) {
			repo := plainRepo()
			f := newFakeHub(t, repo)
			blob := repoCache{root: filepath.Join(os.Getenv("HF_HOME"), "hub"),
				repo: testRepo}.blob(etagOf(weights, repo[weights]))
			if err := errors.Join(os.MkdirAll(filepath.Dir(blob), 0o755),
				os.WriteFile(blob+".incomplete", left, 0o600)); err != nil {
				t.Fatal(err)
			}
			checkFolder(t, f.mustResolve(f.options()), pick(repo, plainWanted...))
		})
	}
}

// TestBlobOfWrongSize finds a blob that some other tool has cut.
func TestBlobOfWrongSize(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	blob := repoCache{root: filepath.Join(os.Getenv("HF_HOME"), "hub"),
		repo: testRepo}.blob(etagOf(weights, repo[weights]))
	if err := errors.Join(os.MkdirAll(filepath.Dir(blob), 0o755), os.WriteFile(blob, pattern(10),
		0o600)); err != nil {
		t.Fatal(err)
	}
	checkFolder(t, f.mustResolve(f.options()), pick(repo, plainWanted...))
}

func TestTooLong(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server == "CDN" {
			w.Write(append(bytes.Clone(repo[weights]), 0))
		}
		return server == "CDN"
	}
	if _, err := f.resolve(f.options()); !errors.Is(err, ErrCorrupt) ||
		!strings.Contains(err.Error(), "more than the announced 3000000 bytes") {
		t.Errorf("error %v", err)
	}
}

// TestETagChange replaces files between the question for their hash and the download, at the first
// and in the middle.
func TestETagChange(t *testing.T) {
	for _, victim := range []string{weights, "tokenizer.json"} {
		for _, when := range []string{"at once", "midway"} {
			t.Run(victim+" "+when, func(t *testing.T) {
				repo := plainRepo()
				f := newFakeHub(t, maps.Clone(repo))
				changed := pattern(400_000)[7:]
				asked, changeAt := 0, 1
				if when == "midway" {
					changeAt = 2
				}
				f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/"+victim) || r.Method != http.MethodGet {
						return false
					}
					f.mu.Lock()
					defer f.mu.Unlock()
					if server == "HUB" {
						asked++
					}
					if server == "HUB" && asked == changeAt {
						f.files[victim] = changed
					}
					if carrier := victim != weights || server == "CDN"; carrier &&
						asked < changeAt {
						if server == "HUB" {
							w.Header().Set("ETag", `"`+etagOf(victim, repo[victim])+`"`)
						}
						cut(w, r, repo[victim], 150_000)
					}
					return false
				}
				dir := f.mustResolve(f.options())
				repo[victim] = changed
				checkFolder(t, dir, pick(repo, plainWanted...))
				if asked != changeAt+1 {
					t.Errorf("the file was asked for %d times, want %d", asked, changeAt+1)
				}
			})
		}
	}
}

// TestETagKeepsChanging ends although the Hub never agrees with itself.
func TestETagKeepsChanging(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	n := 0
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/tokenizer.json") && r.Method == http.MethodGet {
			f.mu.Lock()
			n++
			f.files["tokenizer.json"] = pattern(1000 + n)
			f.mu.Unlock()
		}
		return false
	}
	if _, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(),
		"tokenizer.json: the file has changed on the Hub") || n != 3 {
		t.Errorf("%v after %d downloads", err, n)
	}
}

// TestRetries lets every address fail twice in the ways that pass.
func TestRetries(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"503":  func(w http.ResponseWriter) { w.WriteHeader(503) },
		"429":  func(w http.ResponseWriter) { w.WriteHeader(429) },
		"408":  func(w http.ResponseWriter) { w.WriteHeader(408) },
		"drop": func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			repo := plainRepo()
			f := newFakeHub(t, repo)
			failed := map[string]int{}
			f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
				f.mu.Lock()
				key := server + r.Method + r.URL.Path
				failed[key]++
				now := failed[key] <= 2
				f.mu.Unlock()
				if now {
					fail(w)
				}
				return now
			}
			checkFolder(t, f.mustResolve(f.options()), pick(repo, plainWanted...))
		})
	}
}

// TestSilentBody goes on elsewhere when a server stops sending without closing.
func TestSilentBody(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server != "CDN" || f.count("CDN") > 1 {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(repo[weights])))
		w.Write(repo[weights][:500_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	opt := f.options()
	opt.idle = time.Second
	checkFolder(t, f.mustResolve(opt), pick(repo, plainWanted...))
	if f.count("CDN GET /model.safetensors bytes=500000-") != 1 {
		t.Errorf("requests %q", f.requests)
	}
}

func TestGiveUp(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(500)
		return true
	}
	if _, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(), "500") ||
		f.count("") != maxAttempts {
		t.Errorf("%v after %d requests", err, f.count(""))
	}
}

func TestRetryAfter(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if f.count("") > 1 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(429)
		return true
	}
	start := time.Now()
	f.mustResolve(f.options())
	if d := time.Since(start); d < time.Second {
		t.Errorf("asked again after %v, against Retry-After: 1", d)
	}
}

func TestSpace(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead || !strings.HasSuffix(r.URL.Path, weights) {
			return false
		}
		w.Header().Set(headerETag, `"`+strings.Repeat("a", 64)+`"`)
		w.Header().Set(headerSize, fmt.Sprint(int64(1)<<60))
		w.Header().Set("Location", f.cdn.URL)
		w.WriteHeader(302)
		return true
	}
	if _, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(),
		"GB are free") || f.count("CDN") > 0 {
		t.Errorf("error %v", err)
	}
}

// TestLock waits for another holder of a file's lock, and gives up with the context.
func TestLock(t *testing.T) {
	c := repoCache{root: t.TempDir(), repo: testRepo}
	unlock, err := c.lock(context.Background(), "etag")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.lock(ctx, "etag"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second holder: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	again, err := c.lock(context.Background(), "etag")
	if err != nil {
		t.Fatal(err)
	}
	// A holder that removes the file on leaving, as some versions of Python's filelock do, does not
	// split the lock.
	if err := os.Remove(filepath.Join(c.root, ".locks", c.folder(), "etag.lock")); err != nil {
		t.Fatal(err)
	}
	third, err := c.lock(context.Background(), "etag")
	if err != nil {
		t.Fatal(err)
	}
	again()
	third()
}

// TestWithoutLock has two processes download the same file at once, on a file system without locks.
func TestWithoutLock(t *testing.T) {
	blob, content := filepath.Join(t.TempDir(), "blob"), pattern(1000)
	info := fileInfo{name: "f", etag: etagOf("f", content), size: 1000}
	var both [2]*partial
	for i := range both {
		p, err := openPartial(blob+".incomplete", info)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		if err := p.add(content[p.size:600]); err != nil {
			t.Fatal(err)
		}
		both[i] = p
	}
	for i, p := range both {
		err := errors.Join(p.add(content[600:]), p.verify(), p.publish(blob))
		got, reading := os.ReadFile(blob)
		if err != nil || reading != nil || !bytes.Equal(got, content) {
			t.Errorf("%d: %v, %d bytes, %v", i, err, len(got), reading)
		}
	}
}

func TestGitBlobHash(t *testing.T) {
	// git hash-object of an empty file and of "hello\n".
	for content, want := range map[string]string{"": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
		"hello\n": "ce013625030ba8dba906f756967f9e9ca394464a"} {
		if got, err := gitBlobHash(strings.NewReader(content), int64(len(content))); err != nil ||
			got != want {
			t.Errorf("%q: %s, %v", content, got, err)
		}
	}
}

func FuzzReadInfo(f *testing.F) {
	f.Add([]byte(`{"sha":"` + testCommit +
		`","siblings":[{"rfilename":"model.safetensors"},{"rfilename":"../x.json"}]}`))
	f.Add([]byte(`{"sha":null,"siblings":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		info, err := readInfo(bytes.NewReader(raw))
		if err != nil || checkNames(info.Files) != nil {
			return
		}
		files, err := selectFiles(info.Files)
		if err != nil {
			return
		}
		for _, name := range files {
			if filepath.Base(name) != name && !ofModule(name) && name != toolTemplate ||
				!filepath.IsLocal(name) {
				t.Fatalf("file %q", name)
			}
		}
	})
}

// TestSelectModules picks what follows a model of sentence-transformers, and of other repositories
// nothing but the top folder.
func TestSelectModules(t *testing.T) {
	names := []string{"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json",
		"2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin",
		"onnx/model.onnx", "openvino/config.json", "0_Transformer/config.json", "1_a/b/config.json",
		toolTemplate, "additional_chat_templates/rag.jinja"}
	for want, list := range map[string][]string{
		"[1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors " +
			toolTemplate + " config.json model.safetensors modules.json]": names,
		"[" + toolTemplate + " config.json model.safetensors]": slices.DeleteFunc(
			slices.Clone(names), func(name string) bool { return name == "modules.json" }),
	} {
		got, err := selectFiles(list)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
}
