// Package responses is the dialect of OpenAI's Responses API: requests, the response as it is made
// part by part, those in the background, and those that are kept.
package responses
