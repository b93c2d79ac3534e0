package launch

import (
	"regexp"
	"slices"
	"strings"
)

// hubTokens are names that look secret but that ranks of other hosts need: they may have to get the
// model themselves. awsKeys are those for a model in a bucket of S3's.
var (
	hubTokens = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
	awsKeys   = []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
)

// storeNames are what is read of a host's environment to get a model from a bucket, by the scheme
// of its address, beside awsKeys. Those that name files or services are the host's own.
var storeNames = map[string][]string{
	"s3": {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
		"AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_ROLE_ARN",
		"AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"},
	"gs": {"GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"},
}

// ModelSecrets are names of what looks secret and is sent to other hosts, which may have to get the
// model.
func ModelSecrets(model string) []string {
	if strings.HasPrefix(model, "s3://") {
		return slices.Concat(hubTokens, awsKeys)
	}
	return hubTokens
}

// ModelNames are names of what a rank gets of its host's environment beside what all ranks get, as
// it may have to get the model.
func ModelNames(model string) []string {
	scheme, _, _ := strings.Cut(model, "://")
	return slices.Concat(ModelSecrets(model), storeNames[scheme])
}

// childNames and childPrefixes are what a rank reads that is a child of this process: where files
// are, how Go's runtime and libraries of devices behave, what is this program's own.
var (
	childNames = []string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "TZ",
		"LD_LIBRARY_PATH",
		"LD_PRELOAD", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE",
		"NO_COLOR",
		"TERM", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
	childPrefixes = []string{"EAGLERAY_", "GO", "LC_", "HF_", "HUGGINGFACE_", "CUDA_", "NVIDIA_",
		"NCCL_", "OMP_", "KMP_", "MKL_", "UCX_", "GLOO_"}
)

// ChildEnvironment is what of an environment, as of os.Environ, a rank gets that is a child of this
// process: what it reads, and no secret but those of the names allowed.
func ChildEnvironment(environ []string, allowed ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		if slices.Contains(allowed, name) {
			return false
		}
		wanted := slices.Contains(childNames, name) ||
			slices.ContainsFunc(childPrefixes,
				func(p string) bool { return strings.HasPrefix(name, p) })
		return !wanted || LooksSecret(name, value)
	})
}

// secretPart are letters that mean a secret wherever they stand in a name, with or without
// underscores around them.
var secretPart = regexp.MustCompile(
	`PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CONN(ECTION)?_?STR(ING)?|WEBHOOK`)

// secretWord are words of names that mean a secret. TOKENS is not one: it counts them, as does
// TOKEN before what is counted, and TOKENIZER is another word.
var (
	secretWord = regexp.MustCompile(
		`(^|[_.-])([A-Z0-9]*TOKEN|KEYS?|PASS|PWD|AUTH|AUTHORIZATION|BEARER|COOKIE|JWT|PAT|SAS|DSN)([_.-]|$)`)
	tokenCount = regexp.MustCompile(`TOKEN_(THRESHOLD|LIMIT|COUNT|BUDGET|SIZE|LENGTH|LEN)$`)
)

// secretValue are values that hold a secret under any name: a URL with a password, a private key,
// a connection string of Azure or ODBC, a key with the prefix of a well-known service.
var secretValue = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]*:[^/?#@\s]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----|` +
	`(?i:(^|;)\s*(AccountKey|SharedAccessKey|Password|Pwd)\s*=)|^(sk-|[sr]k_live_|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9]`)

// LooksSecret says that a variable of the environment may hold a secret, by its name or its value.
func LooksSecret(name, value string) bool {
	upper := strings.ToUpper(name)
	return secretPart.MatchString(upper) || secretWord.MatchString(upper) &&
		!tokenCount.MatchString(upper) ||
		secretValue.MatchString(value)
}
