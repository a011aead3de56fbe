"""The scorer's side of running programs: imports wire, isolation and `warehouse`, never lane."""
