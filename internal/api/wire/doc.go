// Package wire is the kit of every API over HTTP: errors in OpenAI's shape, strict JSON, the
// members of a request's body by name, and the writing of JSON. It knows neither the server nor the
// engine.
package wire
