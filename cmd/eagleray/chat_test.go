package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/api/generate"
)

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	*program
	keys *os.File
}

// onTerminal starts a command on a terminal of its own, as a user's is: what it shows is p.out.
func onTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { keys.Close() })
	fd := int(keys.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 200})
	}
	if err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := command(t, "", args...)
	p.cmd.Env = append(append(p.cmd.Env, "TERM=xterm"), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = screen, screen, screen
	p.cmd.SysProcAttr.Setsid, p.cmd.SysProcAttr.Setctty = true, true
	p.shown = true
	p.start()
	screen.Close()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			_, _ = p.out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return &terminal{p, keys}
}

// send types, and waits until the screen shows what is awaited after all that was there.
func (x *terminal) send(keys, want string) {
	x.t.Helper()
	before := len(x.out.String())
	if _, err := x.keys.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
	x.awaits(want, before)
}

// awaits waits until the screen shows want after its first bytes.
func (x *terminal) awaits(want string, bytes int) {
	x.t.Helper()
	eventually(x.t, fmt.Sprintf("%q after %q", want, x.out.String()[:bytes]), func() bool {
		return strings.Contains(x.out.String()[bytes:], want)
	})
}

func TestChatOnTerminal(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "talk.json")
	x := onTerminal(t, []string{"NO_COLOR=1"}, "chat", "--kv-cache-memory-bytes", "64M",
		"--temperature", "0")
	x.send("", "go-std-tiny in this process. Ctrl-D or /bye leaves")
	x.send("What does os.Open do?\r", "Open opens the named file for reading.\r\n> ")
	// Pasted lines are one message; the line is edited, and comes from the history.
	x.send("\x1b[200~What does\rstrings.Index do?\x1b[201~", "do?")
	x.send("\r", "present in s.\r\n> ")
	x.send("nonsense\x15\x1b[A\x1b[AX\x7f\r", "Open opens the named file for reading.\r\n> ")
	x.send("\"\"\"first\r", ". ")
	x.send("second\"\"\"\r", "\r\n> ")
	x.send("third \\\r", ". ")
	x.send("fourth\r", "\r\n> ")
	x.send("/nope\r", "no command /nope")
	x.send("/system be brief\r", "system: be brief")
	x.send("/help\r", "/save FILE")
	x.send("/set\r", "temperature 0\r\n")
	x.send("/set max-tokens 3\r", "max_tokens is 3")
	x.send("/set seed\r", "seed is not set here")
	x.send("/set model x\r", "model is the conversation's own")
	x.send("/stats\r", " tokens/s")
	x.send("/set\r", "max_tokens 3, temperature 0\r\n")
	x.send("/system\r", "system: be brief")
	x.send("fifth\r", " tokens/s, first text after ")
	x.send("/set top_p 7\r", "top_p is 7")
	x.send("sixth\r", "top_p")
	x.send("/set top_p\r", "top_p is as it was")
	x.send("/stats\r", "figures are shown no longer")
	x.send("abc\x03", "Ctrl-D or /bye leaves.")
	x.send("/save "+file+"\r", "13 messages are in "+file)
	x.send("/clear\r", "the conversation is forgotten")
	x.send("/save "+file+".2\r", "1 messages")
	x.send("\x04", "")
	if code := x.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var saved struct{ Messages []generate.Message }
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &saved)
	}
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, m := range saved.Messages {
		if m.Role != "assistant" {
			said = append(said, m.Role+": "+m.Content)
		}
	}
	const want = "system: be brief|user: What does os.Open do?|user: What does\nstrings.Index " +
		"do?|user: What does os.Open do?|user: first\nsecond|user: third \nfourth|user: fifth"
	if got := strings.Join(said, "|"); got != want {
		t.Errorf("the conversation is %q, want %q", got, want)
	}
	if strings.Contains(x.out.String(), "\x1b[2m") {
		t.Error("colours in spite of NO_COLOR")
	}
}

// TestStreamWithoutSpaces reads events as servers write them that leave out the space.
func TestStreamWithoutSpaces(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data:{\"choices\":[{\"delta\":{\"content\":\"well\"}}]}\n\ndata:[DONE]\n\n")
	}))
	defer s.Close()
	r := remote{url: s.URL, client: s.Client()}
	a, err := r.stream(t.Context(), "/v1/chat/completions", map[string]any{}, func(string) {})
	if err != nil || a.text != "well" {
		t.Errorf("%q, %v", a.text, err)
	}
}

// slowServer lists a model and answers with one word; the rest comes when the client has gone.
func slowServer(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"slow"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"well\\u001b[9m\"}}]}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// Ctrl-C ends an answer, and the conversation goes on; a terminal is given colours, and back as it
// was.
func TestChatInterruptAnswer(t *testing.T) {
	t.Parallel()
	url := slowServer(t).URL
	x := onTerminal(t, nil, "chat", "--url", strings.TrimPrefix(url, "http://"))
	x.send("", "slow at "+url)
	for range 2 {
		x.send("hello\r", "well")
		x.send("\x03", "the answer was ended")
	}
	x.send("/bye\r", pasteOff)
	if code := x.exit(); code != 0 || !strings.Contains(x.out.String(), "\x1b[2mslow at ") {
		t.Errorf("exit code %d", code)
	}
	if shown := x.out.String(); strings.Contains(shown, "\x1b[9m") ||
		!strings.Contains(shown, "well\ufffd[9m") {
		t.Errorf("what the model says steers the terminal: %q", shown)
	}
}

// Ctrl-C between two messages ends what is typed, not the conversation, also where the terminal
// makes a signal of it because the program reads no keys yet.
func TestChatInterruptPrompt(t *testing.T) {
	t.Parallel()
	x := onTerminal(t, nil, "chat", "--url", slowServer(t).URL)
	x.send("", "> ")
	for range 3 {
		x.send("typed", "typed")
		before := len(x.out.String())
		x.signal(syscall.SIGINT)
		x.awaits("Ctrl-D or /bye leaves.", before)
	}
	x.send("/save\r", "/save needs the name of a file")
	x.send("/bye\r", pasteOff)
	if code := x.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A signal from outside ends the program at its prompt.
func TestChatTerminated(t *testing.T) {
	t.Parallel()
	x := onTerminal(t, nil, "chat", "--url", slowServer(t).URL+"/v1/")
	x.send("", "> ")
	x.signal(syscall.SIGTERM)
	if code := x.exit(); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
}

func TestAddress(t *testing.T) {
	for given, want := range map[string]string{
		"localhost:8000": "http://localhost:8000", "http://h:1": "http://h:1",
		"http://h:1/v1":        "http://h:1",
		"https://h/prefix/v1/": "https://h/prefix", "10.0.0.1:80/": "http://10.0.0.1:80",
		"[::1]:8000": "http://[::1]:8000",
		"h":          "http://h", "ftp://h": "", "": "", "http://": "",
	} {
		got, err := address(given)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
}

// Whether there is a server, and whether it lets one in, is said before anything is typed.
func TestChatWithoutServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer locked.Close()
	for url, want := range map[string]string{"127.0.0.1:1": "no server answers at " +
		"http://127.0.0.1:1", silent.Addr().String(): "no server answers",
		locked.URL: "--api-key"} {
		started := time.Now()
		for _, verb := range []string{"chat", "complete"} {
			code, _, stderr := execute(t, "", verb, "--url", url)
			if code != exitError || !strings.Contains(stderr, want) {
				t.Errorf("%s --url %s: exit code %d, errors %q", verb, url, code, stderr)
			}
		}
		if took := time.Since(started); took > 4*helloTimeout {
			t.Errorf("it took %v", took)
		}
	}
}

// chat and complete find a server by any spelling of its address, and its model.
func TestClients(t *testing.T) {
	t.Parallel()
	_, url := startServer(t, "--served-model-name", "a", "b")
	for _, u := range []string{url, url + "/v1", url + "/v1/", strings.TrimPrefix(url, "http://")} {
		code, stdout, stderr := execute(t, "What does os.Open do?\n\n", "chat", "--url", u,
			"--temperature", "0")
		if code != 0 || stdout != "Open opens the named file for reading.\n" {
			t.Errorf("chat --url %s: exit code %d, printed %q, errors %q", u, code, stdout, stderr)
		}
	}
	code, stdout, stderr := execute(t, "", "chat", "--url", url, "--model-name", "b",
		"--temperature", "0", "--stats", "-q", "What does os.Open do?")
	if answer, figures, _ := strings.Cut(stdout, "\n"); code != 0 ||
		answer != "Open opens the named file for reading." ||
		!strings.HasPrefix(figures, "17 tokens of prompt") {
		t.Errorf("chat -q: exit code %d, printed %q, errors %q", code, stdout, stderr)
	}
	flags := []string{"complete", "--url", url, "--temperature", "0", "--max-tokens", "8"}
	code, stdout, stderr = execute(t, "Package strings implements\nfunc\n", flags...)
	_, want, _ := execute(t, "", "generate", "--raw", "--kv-cache-memory-bytes", "64M",
		"--temperature", "0", "--max-tokens", "8", "Package strings implements", "func")
	if code != 0 || stdout != want {
		t.Errorf("complete: exit code %d, printed %q, errors %q; want %q", code, stdout, stderr,
			want)
	}
	code, stdout, stderr = execute(t, "", "complete", "--url", url, "--model-name", "c", "-q", "x")
	if code != exitError || stdout != "" || !strings.Contains(stderr, "404") {
		t.Errorf("complete with another model: exit code %d, printed %q, errors %q", code, stdout,
			stderr)
	}
	full := fullDisk(t)
	for _, verb := range []string{"chat", "complete"} {
		p := command(t, "What does os.Open do?\n", verb, "--url", url)
		p.cmd.Stdout = full
		if code := p.start().exit(); code != exitError ||
			!strings.Contains(p.err.String(), "no space left on device") {
			t.Errorf("%s to a full disk: exit code %d: %s", verb, code, p.err.String())
		}
	}
}
