"""vLLM servers or an API as an engine: the only room that asks by HTTP; imports neither vLLM nor torch."""
