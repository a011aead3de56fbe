"""Hundreds of short real runs of the starter side by side: the drill of the alarms, and what losses do."""
