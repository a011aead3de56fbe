"""The only room that changes committed files: check, repair, compact, prune, discard, rollback, upgrade, tasks."""
