package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/logging"
	"github.com/eagleray/eagleray/internal/sys/parent"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// starter is the program that started this server and set parent.Variable: the Python package. It
// reads standard output, where it is told, a line of JSON each, that the
// server is ready ({"ready": {…}}), and why it does not start or has ended
// ({"failed": {"message": "…", "usage": true}}; usage says that an argument is wrong).
type starter struct {
	// socket is the descriptor of a listening socket on which nothing but the program asks; "" for
	// a server that has other clients, and flags that say where it listens.
	socket string
	told   bool
}

// socketVariable tells the descriptor of starter.socket.
const socketVariable = "EAGLERAY_PARENT_SOCKET"

// newStarter returns nil for a server that no program waits for.
func newStarter() *starter {
	if os.Getenv(parent.Variable) == "" {
		return nil
	}
	return &starter{socket: os.Getenv(socketVariable)}
}

// private reports whether the program is the only client.
func (s *starter) private() bool { return s != nil && s.socket != "" }

// listening are flags of servers that mean nothing where the program is the only client.
var listening = []string{"host", "port", "uds", "api-key", "api-key-file", "root-path", "headless",
	"ssl-certfile", "ssl-keyfile"}

// refuse finds those of listening that the program gave. A file or an environment that is for
// servers, too, may have them.
func (s *starter) refuse(f *pflag.FlagSet) error {
	if !s.private() {
		return nil
	}
	for _, name := range listening {
		if f.Changed(name) {
			return cli.UsageError("--%s is for a server: nobody connects to this engine", name)
		}
	}
	return nil
}

// configure lets the only client do what its user may, and ask for all that it wants to know.
func (s *starter) configure(cfg *config.Config) {
	if !s.private() {
		return
	}
	c, d := &cfg.Server, config.Default().Server
	c.Host, c.APIKeys, c.RootPath, c.MaxConnections = d.Host, nil, "", 0
	c.StoreDir = ""
	c.Transport = config.Transport{UDS: "/dev/fd/" + s.socket}
	cfg.Parallel.Nodes.Headless = false
	c.EnablePromptTokensDetails = true
	c.EnableRLHF, c.EnableElasticEP = true, true
	c.AllowedLocalWeights = []string{"/"} // the program could send the bytes as well
	c.ShutdownTimeoutSeconds = 0          // the program that ends the server waits for no answer
	c.DisableAccessLog, c.DisableLogStats = true, true
	cfg.Model.TrustRequestChatTemplate = true
}

// limits are those of the API: a program may stop for as long as it likes, and however much it asks
// at a time, its requests wait for each other.
func (s *starter) limits() wire.Limits {
	if !s.private() {
		return wire.Limits{}
	}
	const ever = 10 * 365 * 24 * time.Hour
	return wire.Limits{HeaderTimeout: ever, BodyTimeout: ever, BodyWait: ever, IdleTimeout: ever,
		WriteTimeout: ever}
}

// log is the log of the server: an only client hears of what goes wrong, as commands do that end
// with their engine.
func (s *starter) log(format string) *serverLog {
	if !s.private() {
		return newServerLog(format)
	}
	lines := logging.NewWriter(os.Stderr)
	return &serverLog{slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: logLevel()})),
		lines, false}
}

// listen has an only client see which Hub is asked for the model: its log does not say so.
func (s *starter) listen(l *serverLog) status.Listener {
	return func(e status.Event) {
		if lookup, ok := e.(status.HubLookup); ok && s.private() {
			fmt.Fprintln(l.lines, lookup)
		}
	}
}

// engineInfo is what the program is told of the engine.
type engineInfo struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// Model is the first of its names.
	Model       string `json:"model"`
	MaxModelLen int    `json:"max_model_len"`
	// Window is how many requests keep the engine busy.
	Window int `json:"window"`
	// MaxBody bounds the bytes of a request's body.
	MaxBody int64 `json:"max_body"`
	// Pooling says that the engine answers with embeddings and scores, not with tokens.
	Pooling bool `json:"pooling"`
	// Sampling is what requests get that say nothing of it: the model's own.
	Sampling samplingDefaults `json:"sampling"`
	// Tokenizer is left out of an engine that runs without one.
	Tokenizer *tokenizerInfo `json:"tokenizer,omitempty"`
}

// tokenizerInfo is what programs ask a tokenizer for that is no text.
type tokenizerInfo struct {
	// VocabSize is the highest token id plus one.
	VocabSize int `json:"vocab_size"`
	// Special are the tokens that tokenizer_config.json names ("eos_token"), where they are tokens.
	Special map[string]specialToken `json:"special"`
}

// specialToken is the text and the id of a token.
type specialToken struct {
	Text string `json:"text"`
	ID   int32  `json:"id"`
}

// infoOf returns what a tokenizer says of itself, nil without one.
func infoOf(t *tokenizer.Tokenizer) *tokenizerInfo {
	if t == nil {
		return nil
	}
	info := &tokenizerInfo{t.VocabSize(), map[string]specialToken{}}
	for name, text := range t.Config().SpecialTokens {
		if id, ok := t.ID(text); ok {
			info.Special[name] = specialToken{text, id}
		}
	}
	return info
}

// samplingDefaults is sample.Settings with the names of SamplingParams; what the model does not say
// is left out.
type samplingDefaults struct {
	Temperature       *float64 `json:"temperature,omitempty"`
	TopP              *float64 `json:"top_p,omitempty"`
	MinP              *float64 `json:"min_p,omitempty"`
	RepetitionPenalty *float64 `json:"repetition_penalty,omitempty"`
	PresencePenalty   *float64 `json:"presence_penalty,omitempty"`
	FrequencyPenalty  *float64 `json:"frequency_penalty,omitempty"`
	TopK              *int     `json:"top_k,omitempty"`
	MaxTokens         *int     `json:"max_tokens,omitempty"`
	SkipSpecial       *bool    `json:"skip_special_tokens,omitempty"`
}

// ready tells the program that its requests are answered.
func (s *starter) ready(cfg *config.Config, info *open.Info) {
	s.tell(map[string]any{"ready": engineInfo{PID: os.Getpid(), Version: version(),
		Model: info.Names[0], MaxModelLen: info.MaxModelLen, Window: rowsInFlight(cfg),
		MaxBody: cfg.Server.MaxRequestBodyBytes, Pooling: info.Pooling != nil,
		Sampling: samplingDefaults(info.Generation), Tokenizer: infoOf(info.Tokenizer)}})
}

// failed tells the program why there is no engine, once, and returns the error. That of an only
// client is printed nowhere else.
func (s *starter) failed(err error) error {
	if s == nil || err == nil {
		return err
	}
	if !s.told {
		s.told = true
		wrong, model := (*config.UsageError)(nil), (*open.ModelError)(nil)
		usage := errors.As(err, &wrong) || errors.As(err, &model)
		s.tell(map[string]any{"failed": map[string]any{"message": err.Error(), "usage": usage}})
	}
	if s.private() {
		return &loggedError{err}
	}
	return err
}

// tell writes a line. A program that is gone needs none.
func (s *starter) tell(v any) {
	if s == nil {
		return
	}
	_ = json.NewEncoder(os.Stdout).Encode(v)
}
