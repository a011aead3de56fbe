"""Joins rows, objective and model into optimizer steps and into what is written of them."""
