"""Servers as an engine, vLLM's own or another maker's API: the only room that speaks HTTP; imports neither vLLM nor torch."""
