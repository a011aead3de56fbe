"""Tests that are wrong on purpose, made from right ones: text in and text out, the standard library alone."""
