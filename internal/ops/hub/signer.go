package hub

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	awssigner "github.com/minio/minio-go/v7/pkg/signer"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	// emptySHA256 is the hash of a body without bytes, which all requests here have.
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	googleScope = "https://www.googleapis.com/auth/devstorage.read_only"
	// machinePatience is how long the service is waited for that tells a machine of a cloud its
	// credentials, and that other machines do not have.
	machinePatience = 2 * time.Second
)

// signer gives requests what shows who asks.
type signer interface {
	sign(req *http.Request, region string) error
	// who is whose credentials they are, in words; "" for none. needed says where some are found.
	who() string
	needed() string
}

// anonymous asks without credentials.
type anonymous struct{ where string }

func (anonymous) sign(*http.Request, string) error { return nil }
func (anonymous) who() string                      { return "" }
func (n anonymous) needed() string                 { return n.where }

const awsNeeded = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

// aws signs as S3 has it. Credentials that end are renewed.
type aws struct {
	found *credentials.Credentials
	from  string
	ctx   *credentials.CredContext
}

func (a *aws) who() string    { return a.from }
func (a *aws) needed() string { return awsNeeded }

func (a *aws) sign(req *http.Request, region string) error {
	v, err := a.found.GetWithContext(a.ctx)
	if err != nil {
		return permanent{refusal{ErrAccess, fmt.Sprintf("%s: %v", a.from, err)}}
	}
	req.Header.Set("X-Amz-Content-Sha256", emptySHA256)
	signed := awssigner.SignV4(*req, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, region)
	req.Header = signed.Header
	return nil
}

// awsSigner looks for credentials where Amazon's own tools do: variables, profiles in files, the
// identity of a pod or a container, and that of the machine. Without any the requests have none.
func awsSigner(ctx context.Context, b bucket) (signer, error) {
	if b.anonymous {
		return anonymous{"leave out anonymous@"}, nil
	}
	profile := os.Getenv("AWS_PROFILE")
	cc := &credentials.CredContext{Client: &http.Client{Timeout: 30 * time.Second}, Context: ctx}
	soon, cancel := context.WithTimeout(ctx, machinePatience)
	defer cancel()
	for _, try := range []struct {
		from     string
		provider credentials.Provider
		ctx      context.Context
		// wanted says that the user has chosen it, so that its error is one.
		wanted, skipped bool
	}{
		{"AWS_ACCESS_KEY_ID", &credentials.EnvAWS{}, ctx, false,
			os.Getenv("AWS_ACCESS_KEY_ID") == ""},
		{"the profile " + cmp.Or(profile, "default"), &credentials.FileAWSCredentials{}, ctx,
			profile != "", false},
		{"AWS_WEB_IDENTITY_TOKEN_FILE", &credentials.IAM{}, ctx, true,
			os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") == ""},
		{"the container", &credentials.IAM{}, ctx, true,
			os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") == "" &&
				os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") == ""},
		{"this machine's role", &credentials.IAM{}, soon, false,
			isTrue(os.Getenv("AWS_EC2_METADATA_DISABLED")) || os.Getenv("AWS_ENDPOINT_URL") != "" ||
				os.Getenv("AWS_ENDPOINT_URL_S3") != ""},
	} {
		if try.skipped {
			continue
		}
		found := credentials.New(try.provider)
		v, err := found.GetWithContext(&credentials.CredContext{Client: cc.Client,
			Context: try.ctx})
		switch {
		case err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "":
			return &aws{found, try.from, cc}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && try.wanted:
			return nil, refusal{ErrAccess, fmt.Sprintf("%s: %v", try.from, err)}
		case try.wanted:
			return nil, refusal{ErrAccess, try.from + " has no credentials"}
		}
	}
	return anonymous{awsNeeded}, nil
}

// bearer asks with a token of Google's.
type bearer struct {
	tokens oauth2.TokenSource
	from   string
}

func (b *bearer) who() string    { return b.from }
func (b *bearer) needed() string { return googleNeeded }

func (b *bearer) sign(req *http.Request, _ string) error {
	token, err := b.tokens.Token()
	if err != nil {
		return permanent{refusal{ErrAccess, fmt.Sprintf("%s: %v", b.from, err)}}
	}
	token.SetAuthHeader(req)
	return nil
}

const googleNeeded = "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default " +
	"login"

// googleSigner looks for credentials where Google's own tools do. An emulator gets none.
func googleSigner(ctx context.Context, b bucket, emulator bool) (signer, error) {
	if b.anonymous {
		return anonymous{"leave out anonymous@"}, nil
	}
	if emulator {
		return anonymous{"STORAGE_EMULATOR_HOST names an emulator, which gets none"}, nil
	}
	file := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")
	found, err := google.FindDefaultCredentials(ctx, googleScope)
	switch {
	case err == nil:
		return &bearer{found.TokenSource, cmp.Or(file, "the default credentials")}, nil
	case file != "":
		return nil, refusal{ErrAccess, err.Error()}
	}
	return anonymous{googleNeeded}, nil
}
