"""The files of a run and how they appear whole; imports ledger and objects, and no other sub-room."""
