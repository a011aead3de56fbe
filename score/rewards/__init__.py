"""Rewards and the identity of scorers: sees measures, never processes."""
