"""The engine of a rollout: its interface, vLLM in this process, the weights that it loads."""
