package worker

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// vocabulary reads the texts of the model's tokens: once, and only on a rank that is given a
// request with a constraint.
func vocabulary(init queue.Init, folder checkpoint.Folder) (*constrain.Vocabulary, error) {
	if init.Tokenizer != "" {
		var err error
		folder, err = knownFolder(init, init.Tokenizer, init.TokenizerFiles,
			func() (checkpoint.Folder, error) {
				return checkpoint.Dir(init.Tokenizer)
			})
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
	}
	t, err := tokenizer.Open(folder)
	if err != nil {
		return nil, err
	}
	return grammars.Vocabulary(t, init.Ends...), nil
}
