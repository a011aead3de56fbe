"""Run folders for tests: `runs` makes the folder and writes rows, the other files say which rows.

Texts that a test names (`texts`), completions drawn as a healthy or a sick run would have them (`weather`),
completions that a tiny model really samples (`sampled`); `scripted` stands in for vLLM.
"""
