// Package anthropic is the dialect of Anthropic's Messages API.
package anthropic
