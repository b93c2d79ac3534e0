package kvtransfer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
)

// Secret authorises one transfer; its hash is the transfer's public name.
type Secret [32]byte

// NewSecret returns a secret from the system's random source.
func NewSecret() Secret {
	var s Secret
	rand.Read(s[:])
	return s
}

// Name returns the public name of the transfer, for logs.
func (s Secret) Name() string {
	h := sha256.Sum256(s[:])
	return hex.EncodeToString(h[:8])
}

// String hides the secret.
func (s Secret) String() string { return "transfer " + s.Name() }

// MarshalText writes the secret in hexadecimal, for its ticket and for peers.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText reads what MarshalText wrote. The error does not repeat it.
func (s *Secret) UnmarshalText(b []byte) error { return unhex(s[:], b) }

// Digest is a SHA-256: of a certificate, or of tokens.
type Digest [sha256.Size]byte

// MarshalText writes it in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(d[:])), nil }

// UnmarshalText reads what MarshalText wrote.
func (d *Digest) UnmarshalText(b []byte) error { return unhex(d[:], b) }

func unhex(to, b []byte) error {
	if hex.DecodedLen(len(b)) != len(to) || len(b)%2 != 0 {
		return fmt.Errorf("must be %d hexadecimal digits, has %d characters", 2*len(to), len(b))
	}
	if _, err := hex.Decode(to, b); err != nil {
		return fmt.Errorf("must be hexadecimal")
	}
	return nil
}

// Address is where an agent listens, and the SHA-256 of its certificate.
type Address struct {
	Host        string `json:"host"`
	Port        int    `json:"port"`
	Fingerprint Digest `json:"fingerprint"`
	// Local is the agent's name to processes of its host; "" for none.
	Local string `json:"local,omitempty"`
}

// Loopback reports whether the address is one of this host only.
func (a Address) Loopback() bool {
	ip := net.ParseIP(a.Host)
	return ip != nil && ip.IsLoopback()
}

// Ticket tells a decoding engine where to fetch the blocks of a prompt. The client of a prefill
// receives it and sends it on. It is vLLM's kv_transfer_params, with vLLM's names where it has
// them.
type Ticket struct {
	DoRemotePrefill bool `json:"do_remote_prefill"`
	DoRemoteDecode  bool `json:"do_remote_decode"`
	// EngineID names the producer, RequestID the transfer in logs.
	EngineID  string `json:"remote_engine_id"`
	RequestID string `json:"remote_request_id"`
	// BlockIDs are the producer's blocks, for people: no program reads them.
	BlockIDs []uint32 `json:"remote_block_ids"`
	// Tokens is how many leading tokens of the prompt are in them.
	Tokens int `json:"remote_num_tokens"`
	// Host, Port, Fingerprint and Local are the agent of the producer's first rank.
	Host        string `json:"remote_host"`
	Port        int    `json:"remote_port"`
	Fingerprint Digest `json:"remote_fingerprint"`
	Local       string `json:"remote_local,omitempty"`
	TPSize      int    `json:"tp_size"`
	Secret      Secret `json:"remote_secret"`
	// Seal proves that the ticket is from an engine with the same cluster token; without one it is
	// zero.
	Seal Digest `json:"remote_seal"`
}

// Address is the agent of the producer's first rank.
func (t *Ticket) Address() Address { return Address{t.Host, t.Port, t.Fingerprint, t.Local} }

// SealBy seals the ticket.
func (t *Ticket) SealBy(token []byte) { t.Seal = t.seal(token) }

// SealedBy reports whether an engine with the token sealed the ticket as it is.
func (t *Ticket) SealedBy(token []byte) bool {
	want := t.seal(token)
	return subtle.ConstantTimeCompare(want[:], t.Seal[:]) == 1
}

func (t *Ticket) seal(token []byte) (d Digest) {
	c := *t
	c.Seal, c.DoRemotePrefill, c.DoRemoteDecode = Digest{}, true, false
	text, err := json.Marshal(c)
	if err != nil {
		return d // not with these types
	}
	m := hmac.New(sha256.New, token)
	m.Write([]byte("eagleray kv ticket\x00"))
	m.Write(text)
	m.Sum(d[:0])
	return d
}
