"""From tasks to the prompts of an iteration, as text and token ids; knows no engine."""
