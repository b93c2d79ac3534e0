// Package openapi describes the routes of a server as they are: an OpenAPI document that is made of
// their Go types and of what their decoders read, and a page that shows it.
package openapi
