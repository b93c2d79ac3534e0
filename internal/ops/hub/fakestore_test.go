package hub

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	storeKey    = "AKIDEXAMPLE"
	storeSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

// fakeStore has buckets as S3 has them, by paths. It lists three objects at a time, and checks
// signatures by its own reading of
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
type fakeStore struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	objects  map[string][]byte // by bucket/key
	requests []string          // "GET /bucket/key bytes=5-"
	// region is where its buckets are, open whether requests without credentials are answered.
	region string
	open   bool
	// intercept may answer a request itself, and returns whether it did.
	intercept func(w http.ResponseWriter, r *http.Request) bool
	// adjust adds to the headers of an object.
	adjust func(h http.Header, key string)
}

func newFakeStore(t *testing.T, files map[string][]byte) *fakeStore {
	f := &fakeStore{t: t, region: "us-east-1", objects: map[string][]byte{}}
	for name, data := range files {
		f.objects["models/llama/"+name] = data
	}
	f.server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.server.Close)
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
		"AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_ACCESS_KEY", "AWS_SECRET_KEY", "STORAGE_EMULATOR_HOST",
		"GOOGLE_APPLICATION_CREDENTIALS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		t.Setenv(name, "")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("HF_HOME", filepath.Join(home, "hf"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(home, "credentials"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(home, "config"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ENDPOINT_URL", f.server.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", storeKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", storeSecret)
	return f
}

func (f *fakeStore) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+
		r.Header.Get("Range")))
	intercept, adjust := f.intercept, f.adjust
	f.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	if r.Header.Get("Authorization") == "" {
		if !f.open {
			refuse(w, http.StatusForbidden, "AccessDenied")
			return
		}
	} else if status, code := f.checkSignature(r); code != "" {
		w.Header().Set(headerRegion, f.region)
		refuse(w, status, code)
		return
	}
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if key == "" {
		f.list(w, r, name)
		return
	}
	f.mu.Lock()
	data, ok := f.objects[name+"/"+key]
	f.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	w.Header().Set("ETag", storeETag(data))
	if r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
		w.Header().Set("X-Amz-Checksum-Crc32c", base64.StdEncoding.EncodeToString([]byte{
			byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}))
	}
	if adjust != nil {
		adjust(w.Header(), key)
	}
	http.ServeContent(w, r, key, time.Time{}, bytes.NewReader(data))
}

// storeETag is as that of an object that was stored in parts: it says nothing of the content.
func storeETag(data []byte) string {
	sum := md5.Sum(data)
	return `"` + hex.EncodeToString(sum[:]) + `-2"`
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code>"+
		"<Message>it said</Message></Error>", code)
}

func (f *fakeStore) list(w http.ResponseWriter, r *http.Request, name string) {
	q := r.URL.Query()
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	known := false
	for at := range f.objects {
		in, key, _ := strings.Cut(at, "/")
		known = known || in == name
		if in == name && strings.HasPrefix(key, q.Get("prefix")) &&
			key > q.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	if q.Get("list-type") != "2" || !known {
		refuse(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	slices.Sort(keys)
	var page listing
	if page.IsTruncated = len(keys) > 3; page.IsTruncated {
		keys = keys[:3]
		page.NextContinuationToken = keys[2]
	}
	for _, key := range keys {
		data := f.objects[name+"/"+key]
		page.Contents = append(page.Contents, struct {
			Key, ETag string
			Size      int64
		}{key, storeETag(data), int64(len(data))})
	}
	if err := xml.NewEncoder(w).Encode(page); err != nil {
		f.t.Error(err)
	}
}

// checkSignature returns the code of what is wrong with a request's signature, "" for nothing.
func (f *fakeStore) checkSignature(r *http.Request) (status int, code string) {
	fields := map[string]string{}
	kind, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for _, part := range strings.Split(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if kind != "AWS4-HMAC-SHA256" || len(scope) != 5 {
		return http.StatusBadRequest, "AuthorizationHeaderMalformed"
	}
	if scope[0] != storeKey {
		return http.StatusForbidden, "InvalidAccessKeyId"
	}
	if scope[2] != f.region {
		return http.StatusBadRequest, "AuthorizationHeaderMalformed"
	}
	escaped := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	var query []string
	for name, values := range r.URL.Query() {
		query = append(query, escaped(name)+"="+escaped(values[0]))
	}
	slices.Sort(query)
	text := r.Method + "\n" + strings.ReplaceAll(escaped(r.URL.Path), "%2F", "/") + "\n" +
		strings.Join(query, "&") + "\n"
	for _, name := range strings.Split(fields["SignedHeaders"], ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		text += name + ":" + strings.TrimSpace(value) + "\n"
	}
	text += "\n" + fields["SignedHeaders"] + "\n" + r.Header.Get("X-Amz-Content-Sha256")
	sum := sha256.Sum256([]byte(text))
	key := []byte("AWS4" + storeSecret)
	for _, part := range append(scope[1:], "AWS4-HMAC-SHA256\n"+r.Header.Get("X-Amz-Date")+"\n"+
		strings.Join(scope[1:], "/")+"\n"+hex.EncodeToString(sum[:])) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	if hex.EncodeToString(key) != fields["Signature"] {
		return http.StatusForbidden, "SignatureDoesNotMatch"
	}
	return 0, ""
}

// count is how many requests have begun so.
func (f *fakeStore) count(prefix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return begunSo(f.requests, prefix)
}

func (f *fakeStore) put(key string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = data
}

func (f *fakeStore) options() Options {
	return Options{firstWait: time.Millisecond,
		Warn: func(m string) { f.t.Log("warning: " + m) }}
}

func (f *fakeStore) mustResolve(model string) string {
	f.t.Helper()
	dir, err := Resolve(f.t.Context(), model, f.options())
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// cutAt answers with the first bytes of an object and ends the connection.
func cutAt(w http.ResponseWriter, data []byte, n int) {
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("ETag", storeETag(data))
	w.Write(data[:n])
	panic(http.ErrAbortHandler)
}
