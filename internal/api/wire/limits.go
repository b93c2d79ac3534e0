package wire

import "time"

// Limits bound what one client can make the server do. A zero field means the default beside it.
type Limits struct {
	// Header is the largest request header in bytes: 64 KiB.
	Header int
	// JSONDepth is the deepest nesting of a body: 128.
	JSONDepth int
	// JSONMembers is the largest number of members in one JSON object: 65536.
	JSONMembers int
	// N is the largest n: 128, OpenAI's own limit (vLLM allows 16384).
	N int
	// Prompts is the longest list of prompts: 2048.
	Prompts int
	// Sequences is the largest n times prompts: 4096.
	Sequences int
	// Stops is the largest number of stop strings: 64; StopBytes the longest one: 1024.
	Stops, StopBytes int
	// Choices is the largest number of choices of structured_outputs, each as long as a stop
	// string:
	// 4096.
	Choices int
	// StopTokens is the largest number of stop_token_ids: 1024.
	StopTokens int
	// LogitBias is the largest number of logit_bias entries: 1024.
	LogitBias int
	// BadWords is the largest number of bad_words, and of token sequences made of them: 512.
	BadWords int
	// Pattern is the longest pattern in tokens that repetition_detection looks for: 1024.
	Pattern int
	// BeamTokens is the largest number of beams times tokens of one request: 65536.
	BeamTokens int
	// HeaderTimeout, BodyTimeout and IdleTimeout bound reading a header, reading a body, and
	// waiting for the next request on a connection: 10 s, 60 s, 120 s.
	HeaderTimeout, BodyTimeout, IdleTimeout time.Duration
	// BodyWait is how long a body waits for room among the others: 5 s.
	BodyWait time.Duration
	// WriteTimeout is how long one write may wait for a client that does not read before the client
	// is cut off and its request aborted: 30 s. It does not bound the length of a response.
	WriteTimeout time.Duration
	// HealthTimeout bounds the engine's answer to a health check: 5 s.
	HealthTimeout time.Duration
}

// WithDefaults fills in the limits that are 0.
func (l Limits) WithDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	wait := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Header, 64<<10)
	def(&l.JSONDepth, 128)
	def(&l.JSONMembers, 65536)
	def(&l.N, 128)
	def(&l.Prompts, 2048)
	def(&l.Sequences, 4096)
	def(&l.Stops, 64)
	def(&l.StopBytes, 1024)
	def(&l.Choices, 4096)
	def(&l.StopTokens, 1024)
	def(&l.LogitBias, 1024)
	def(&l.BadWords, 512)
	def(&l.Pattern, 1024)
	def(&l.BeamTokens, 65536)
	wait(&l.HeaderTimeout, 10*time.Second)
	wait(&l.BodyTimeout, 60*time.Second)
	wait(&l.BodyWait, 5*time.Second)
	wait(&l.IdleTimeout, 120*time.Second)
	wait(&l.WriteTimeout, 30*time.Second)
	wait(&l.HealthTimeout, 5*time.Second)
	return l
}
