"""The only room that changes committed files: check --fix, prune, discard, rollback, tasks."""
