package ray

import (
	"os"
	"path/filepath"
	"strings"
)

// withTokenMode returns env with RAY_AUTH_MODE=token if a token is known and the user has not
// chosen a mode. For a cluster with an address Ray does not do so itself, and tells only after 20
// seconds that it was refused; to a cluster that wants no token one does no harm, and versions
// before 2.52 ignore it.
func withTokenMode(env []string) []string {
	if lookup(env, "RAY_AUTH_MODE") != "" || token(env) == "" {
		return env
	}
	return append(env[:len(env):len(env)], "RAY_AUTH_MODE=token")
}

// withFewRetries returns env with RAY_NUM_REDIS_GET_RETRIES=3 unless it is set: Ray asks a
// cluster that refuses it again each second, by default twenty times. Whether there is a cluster
// at all is known before.
func withFewRetries(env []string) []string {
	if lookup(env, "RAY_NUM_REDIS_GET_RETRIES") != "" {
		return env
	}
	return append(env[:len(env):len(env)], "RAY_NUM_REDIS_GET_RETRIES=3")
}

// token returns the token that Ray would use in a process with this environment, empty if there
// is none.
func token(env []string) string {
	if t := lookup(env, "RAY_AUTH_TOKEN"); t != "" {
		return strings.TrimSpace(t)
	}
	path := lookup(env, "RAY_AUTH_TOKEN_PATH")
	if path == "" {
		if lookup(env, "HOME") == "" {
			return ""
		}
		path = filepath.Join(lookup(env, "HOME"), ".ray", "auth_token")
	}
	// No file is no token.
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// lookup returns the last value of a name, which is the one that counts.
func lookup(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}
