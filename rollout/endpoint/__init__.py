"""vLLM servers or an API as an engine: the only room that uses HTTP; imports neither vLLM nor torch."""
