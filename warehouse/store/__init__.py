"""The files of a run and how they appear whole; imports no other sub-room."""
