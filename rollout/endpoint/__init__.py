"""Running vLLM servers as an engine: the only room that speaks HTTP; imports neither vLLM nor torch."""
