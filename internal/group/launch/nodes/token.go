package nodes

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// The size of a secret in bytes, without white space around it. One of less could be guessed.
const (
	minSecret = 16
	maxSecret = 4096
)

// ReadToken reads the secret that all nodes share. Its errors do not repeat it.
func ReadToken(path string) (handshake.Token, error) {
	f, err := os.Open(path)
	if err != nil {
		return handshake.Token{}, err
	}
	defer f.Close()
	secret, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return handshake.Token{}, err
	}
	if len(secret) > maxSecret {
		return handshake.Token{}, fmt.Errorf("%s has more than %d bytes", path, maxSecret)
	}
	if secret = bytes.TrimSpace(secret); len(secret) < minSecret {
		return handshake.Token{}, fmt.Errorf("%s has a secret of %d characters, of at least %d: "+
			"openssl rand -hex 32 makes one", path, len(secret), minSecret)
	}
	return handshake.TokenOf(secret), nil
}
