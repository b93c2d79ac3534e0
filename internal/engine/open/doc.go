// Package open makes the specification of the engines of a server from the configuration and the
// model's folder: which files count, what they say, how ranks divide the model, and what of the
// memory each takes. It starts nothing.
package open
