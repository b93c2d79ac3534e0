// Package generate is the typed middle of the API: requests for text as every dialect means them,
// from their check against the model to the engine, and the answers on their way back.
//
// A dialect fills a Chat or a Completion, says under which names its clients wrote the fields
// (errors name these), and starts it with a Service. The fields that all dialects have under vLLM's
// names are read here (Sampling.Decode, Chat.DecodeShared).
package generate
