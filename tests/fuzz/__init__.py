"""Damage and inputs drawn at random: every command answers them in a sentence, in time."""
