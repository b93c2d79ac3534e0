package openai

// TestServerSeed repeats the seeds of requests that bring none, when the server has a seed of its
