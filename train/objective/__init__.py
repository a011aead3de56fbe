"""Advantages, corrections and losses: pure tensors and plain values in and out, no rows, no model."""
