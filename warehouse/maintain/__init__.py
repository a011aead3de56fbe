"""The only room that changes committed files: repair, compact, prune, discard, rollback, tasks."""
