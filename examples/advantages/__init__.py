"""Advantages of your own, for `train --advantages FILE.py:NAME`."""
