"""The engine of a rollout: what one is asked for, vLLM in this process, the weights that it gets."""
