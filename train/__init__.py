"""Scored groups become the next policy; the only room that knows transformers, PEFT and Accelerate."""
