"""vLLM servers or an API as an engine: the only room that speaks HTTP; imports neither vLLM nor torch."""
