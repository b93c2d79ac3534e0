package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/eagleray/eagleray/internal/config"
)

// newChat talks to a model in the terminal: one of its own, or a server's.
func newChat() *cobra.Command {
	cfg := config.Default()
	var s sampling
	var url, key, system string
	c := &cobra.Command{
		Use:   "chat [MODEL]",
		Short: "Talk to a model in the terminal",
		Long: `chat answers what is typed, keeping the conversation; an empty line or Ctrl-D ends it. The model is
a folder, a Hub repo, the built-in one, or whatever the server at --url has.

  eagleray chat
  eagleray chat --url http://127.0.0.1:8000
  echo "What does strings.Index do?" | eagleray chat`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			useModel(&cfg, args)
			if err := errors.Join(cfg.Validate(), s.validate()); err != nil {
				return err
			}
			if url != "" && cfg.Model.Path != "" {
				return usageError("--url: the server has its own model; %q is not used",
					cfg.Model.Path)
			}
			printWarnings(cfg.Warnings)
			t := talk{key: key, url: strings.TrimRight(url, "/"), flags: c.Flags(), sampling: &s,
				client: http.DefaultClient}
			if system != "" {
				t.say("system", system)
			}
			if url == "" {
				stop, err := t.startServer(c.Context(), cfg)
				if err != nil {
					return err
				}
				defer stop()
			}
			return t.run(c.Context(), os.Stdin, os.Stdout)
		},
	}
	c.Flags().StringVar(&url, "url", "", "server to talk to, instead of a model of one's own")
	c.Flags().StringVar(&key, "api-key", "", "key of that server (or OPENAI_API_KEY)")
	config.Alias(c.Flags(), "api-key", "OPENAI_API_KEY")
	c.Flags().StringVar(&system, "system-prompt", "", "first message of the conversation")
	modelFlag(c.Flags(), &cfg)
	cfg.EngineFlags(c.Flags())
	s.flags(c.Flags(), 0)
	configFlag(c)
	return c
}

// talk is a conversation over the chat API.
type talk struct {
	url, key string
	client   *http.Client
	flags    *pflag.FlagSet
	sampling *sampling
	messages []message
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (t *talk) say(role, content string) { t.messages = append(t.messages, message{role, content}) }

// startServer serves a model of one's own to this conversation alone, over connections inside the
// process.
func (t *talk) startServer(ctx context.Context, cfg config.Config) (stop func(), err error) {
	e, err := openEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	handler, err := newHandler(cfg, e, nil, nil, nil)
	if err != nil {
		return nil, errors.Join(err, e.Stop(ctx))
	}
	conns := newInside()
	server := &http.Server{Handler: handler.Handler()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with http.ErrServerClosed when the conversation is over.
		_ = server.Serve(conns)
	}()
	t.url = "http://127.0.0.1"
	t.client = &http.Client{Transport: &http.Transport{DialContext: conns.dial}}
	return func() {
		server.Close()
		<-done
		// The conversation is over; an error of a worker that was ended would tell the user
		// nothing.
		_ = e.Stop(context.WithoutCancel(ctx))
	}, nil
}

// run reads questions and prints answers until the input ends.
func (t *talk) run(ctx context.Context, in *os.File, out io.Writer) error {
	prompt := ""
	if term.IsTerminal(int(in.Fd())) {
		prompt = "> "
	}
	lines := make(chan string)
	var failure error
	// It ends with the input; when the conversation is broken off, with the process.
	go func() {
		defer close(lines)
		scan := bufio.NewScanner(in)
		scan.Buffer(nil, 16<<20)
		for scan.Scan() {
			lines <- scan.Text()
		}
		failure = scan.Err()
	}()
	for {
		fmt.Fprint(out, prompt)
		var line string
		var more bool
		select {
		case line, more = <-lines:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !more {
			return failure
		}
		if strings.TrimSpace(line) == "" {
			return nil
		}
		t.say("user", line)
		answer, err := t.ask(ctx, out)
		if err != nil {
			return err
		}
		t.say("assistant", answer)
		fmt.Fprintln(out)
	}
}

// ask sends the conversation and prints the answer as it comes.
func (t *talk) ask(ctx context.Context, out io.Writer) (string, error) {
	body := map[string]any{"messages": t.messages, "stream": true}
	if t.sampling.maxTokens > 0 {
		body["max_tokens"] = t.sampling.maxTokens
	}
	for flag, v := range map[string]any{"temperature": t.sampling.temperature,
		"top-p": t.sampling.topP, "top-k": t.sampling.topK} {
		if t.flags.Changed(flag) {
			body[strings.ReplaceAll(flag, "-", "_")] = v
		}
	}
	if len(t.sampling.stop) > 0 {
		body["stop"] = t.sampling.stop
	}
	if t.sampling.ignoreEOS {
		body["ignore_eos"] = true
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+"/v1/chat/completions",
		bytes.NewReader(raw))
	if err != nil {
		return "", usageError("--url: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	if t.key != "" {
		r.Header.Set("Authorization", "Bearer "+t.key)
	}
	resp, err := t.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return "", fmt.Errorf("server answered %s: %s", resp.Status, errorText(raw))
	}
	return readAnswer(resp.Body, out)
}

// errorText is the message of an error body, or the body.
func errorText(raw []byte) string {
	var body struct{ Error struct{ Message string } }
	if json.Unmarshal(raw, &body) == nil && body.Error.Message != "" {
		return body.Error.Message
	}
	return strings.TrimSpace(string(raw))
}

func readAnswer(r io.Reader, out io.Writer) (string, error) {
	var answer strings.Builder
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", fmt.Errorf("server sent %q: %w", data, err)
		}
		if chunk.Error != nil {
			return "", errors.New(chunk.Error.Message)
		}
		for _, c := range chunk.Choices {
			answer.WriteString(c.Delta.Content)
			fmt.Fprint(out, c.Delta.Content)
		}
	}
	return answer.String(), lines.Err()
}

// inside is a listener whose connections never leave the process.
type inside struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newInside() *inside { return &inside{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (l *inside) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *inside) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *inside) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener.
func (l *inside) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
