package launch

import (
	"slices"
	"testing"
)

// TestChildEnvironment wants a rank to get what it reads, and no secret under any name.
func TestChildEnvironment(t *testing.T) {
	kept := []string{"PATH=/bin", "HOME=/root", "HF_HOME=/data", "GODEBUG=madvdontneed=1",
		"EAGLERAY_X=1", "LC_ALL=C",
		"OMP_NUM_THREADS=2", "https_proxy=http://proxy:3128"}
	withheld := []string{"EAGLERAY_API_KEY=k", "VLLM_API_KEY=k", "OPENAI_API_KEY=k",
		"HF_TOKEN=hf_1", "AWS_SECRET_ACCESS_KEY=k",
		"AWS_PROFILE=p", "DATABASE_URL=postgres://u:p@h/d",
		"https_proxy=http://user:pass@proxy:3128", "LISTEN_FDS=1",
		"NOTIFY_SOCKET=/x", "HF_HUB_TOKEN=k", "GOOGLE_APPLICATION_CREDENTIALS=/x.json",
		"EAGLERAY_RAY_AUTH_TOKEN=t"}
	if got := ChildEnvironment(append(slices.Clone(kept), withheld...)); !slices.Equal(got, kept) {
		t.Errorf("got %q, want %q", got, kept)
	}
	for model, want := range map[string][]string{
		"org/name": {"HF_TOKEN=hf_1"},
		"s3://b/m": {"HF_TOKEN=hf_1", "AWS_SECRET_ACCESS_KEY=k", "AWS_PROFILE=p"},
		"gs://b/m": {"HF_TOKEN=hf_1", "GOOGLE_APPLICATION_CREDENTIALS=/x.json"},
	} {
		if got := ChildEnvironment(withheld, ModelNames(model)...); !slices.Equal(got, want) {
			t.Errorf("with the model %s: %q, want %q", model, got, want)
		}
	}
}
