"""vLLM servers and foreign APIs as an engine: the only room that speaks HTTP; imports neither vLLM nor torch."""
