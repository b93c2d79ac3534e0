package hub

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const publicHub = "https://huggingface.co"

// environment is where the Hub and its cache are, by the rules of huggingface_hub's constants.py.
type environment struct {
	cache    string
	endpoint *url.URL
	token    string
	offline  bool
}

// CacheDir is where repositories are kept; downloadDir, if it is not empty, goes before the
// environment.
func CacheDir(downloadDir string) (string, error) {
	home, err := hubHome()
	if err != nil {
		return "", err
	}
	return cacheIn(home, downloadDir)
}

func cacheIn(home, downloadDir string) (string, error) {
	return expand(cmp.Or(downloadDir, os.Getenv("HF_HUB_CACHE"),
		os.Getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(home, "hub")))
}

func readEnvironment(opt Options) (environment, error) {
	env := environment{offline: opt.Offline ||
		isTrue(cmp.Or(os.Getenv("HF_HUB_OFFLINE"), os.Getenv("TRANSFORMERS_OFFLINE")))}
	home, err := hubHome()
	if err != nil {
		return env, err
	}
	if env.cache, err = cacheIn(home, opt.DownloadDir); err != nil {
		return env, err
	}
	address := strings.TrimRight(cmp.Or(opt.Endpoint, os.Getenv("HF_ENDPOINT"), publicHub), "/")
	env.endpoint, err = url.Parse(address)
	if err != nil || (env.endpoint.Scheme != "https" && env.endpoint.Scheme != "http") ||
		env.endpoint.Host == "" || env.endpoint.User != nil {
		return env, fmt.Errorf("the Hub's address %q is not of the form https://host", address)
	}
	env.token, err = findToken(opt, home)
	return env, err
}

func isTrue(v string) bool {
	switch strings.ToUpper(v) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// hubHome is $HF_HOME or its default.
func hubHome() (string, error) {
	if home := os.Getenv("HF_HOME"); home != "" {
		return expand(home)
	}
	if cache := os.Getenv("XDG_CACHE_HOME"); cache != "" {
		cache, err := expand(cache)
		return filepath.Join(cache, "huggingface"), err
	}
	return expand("~/.cache/huggingface")
}

// expand makes a path absolute, with the user's home folder for a leading "~".
func expand(path string) (string, error) {
	if path == "~" || strings.HasPrefix(path, "~/") {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("folder %s: %w", path, err)
		}
		path = home + path[1:]
	}
	return filepath.Abs(path)
}

// findToken looks where huggingface_hub does; no token is not an error.
func findToken(opt Options, home string) (string, error) {
	token := opt.Token
	if token == "" && !isTrue(os.Getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		token = cmp.Or(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN"))
		if strings.TrimSpace(token) == "" {
			path, err := expand(cmp.Or(os.Getenv("HF_TOKEN_PATH"), filepath.Join(home, "token")))
			if err != nil {
				return "", err
			}
			raw, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", fmt.Errorf("the Hugging Face token's file: %w", err)
			}
			token = string(raw)
		}
	}
	token = strings.TrimSpace(token)
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", errors.New("the Hugging Face token has characters that no token has")
		}
	}
	return token, nil
}
