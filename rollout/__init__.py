"""Tasks to prompts to completions: the only room that knows vLLM."""
