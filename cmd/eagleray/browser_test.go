package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browser is a headless Chromium, driven over its DevTools protocol on a pair of pipes
// (--remote-debugging-pipe): JSON messages that end in a zero byte.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	last    int
	waiting map[int]chan devtools
	// wrong are errors on the console, exceptions and violations of the policy; asked are the
	// addresses requested.
	wrong, asked []string
}

type devtools struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
}

// startBrowser starts Chromium with an empty page, and skips the test where there is none.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium on this machine (Debian: apt-get install chromium)")
	}
	commandsOut, commandsIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	eventsOut, eventsIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir(), "--disable-background-networking",
		"--disable-component-update", "about:blank")
	cmd.ExtraFiles = []*os.File{commandsOut, eventsIn} // its descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	commandsOut.Close()
	eventsIn.Close()
	b := &browser{t: t, to: commandsIn, waiting: map[int]chan devtools{}}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(eventsOut) })
	t.Cleanup(func() {
		commandsIn.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with all its processes
		_ = cmd.Wait()
		eventsOut.Close()
		reading.Wait()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true},
		&session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// read delivers replies and collects what went wrong.
func (b *browser) read(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		raw, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m devtools
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch m.Method {
		case "":
			if c := b.waiting[m.ID]; c != nil {
				delete(b.waiting, m.ID)
				c <- m
			}
		case "Runtime.exceptionThrown":
			b.wrong = append(b.wrong, string(m.Params))
		case "Runtime.consoleAPICalled", "Log.entryAdded":
			if p := string(m.Params); strings.Contains(p, `"type":"error"`) ||
				strings.Contains(p, `"level":"error"`) {
				b.wrong = append(b.wrong, p)
			}
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			if json.Unmarshal(m.Params, &p) == nil {
				b.asked = append(b.asked, p.Request.URL)
			}
		}
		b.mu.Unlock()
	}
}

// call makes one call of the protocol and waits for its result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	raw, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	reply := make(chan devtools, 1)
	b.mu.Lock()
	b.last++
	m := devtools{ID: b.last, Method: method, Params: raw, SessionID: b.session}
	b.waiting[m.ID] = reply
	b.mu.Unlock()
	line, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(line, 0)); err != nil {
		b.t.Fatal(err)
	}
	select {
	case m := <-reply:
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v in %s", method, err, m.Result)
			}
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: no answer within %v", method, patience)
	}
}

// eval evaluates an expression in the page, waits for its promise, and returns it as JSON.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true,
		"returnByValue": true, "userGesture": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return string(r.Result.Value)
}

// until waits for an expression to be true in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for b.eval("Boolean("+expression+")") != "true" {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is not true after %v; the page shows %s", expression, patience,
				b.eval("document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// open goes to an address and waits for its scripts.
func (b *browser) open(address string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.until("document.readyState === 'complete'")
}

// press presses and releases a key; text is what it types.
func (b *browser) press(key, text string, code int) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		p := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			p["text"] = text
		}
		b.call("Input.dispatchKeyEvent", p, nil)
	}
}

// write types a text where the focus is.
func (b *browser) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text}, nil)
}

// resize gives the page a size in CSS pixels and a colour scheme.
func (b *browser) resize(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// screenshot writes what is seen to a file in $EAGLERAY_SCREENSHOTS, if that is set.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("EAGLERAY_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	raw, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(fmt.Sprintf("%s/%s.png", dir, name), raw, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// clean fails the test if anything went wrong in the page, or it asked another server.
func (b *browser) clean(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.t.Errorf("the page says: %s", w)
	}
	for _, a := range b.asked {
		u, err := url.Parse(a)
		if err != nil || u.Scheme == "http" && "http://"+u.Host != origin ||
			u.Scheme != "http" && u.Scheme != "about" && u.Scheme != "file" {
			b.t.Errorf("the page asked for %s", a)
		}
	}
	b.wrong, b.asked = nil, nil
}
