"""The only room that changes committed files: check --fix, compact, prune, discard, rollback, tasks."""
