"""The files of a run and how they appear whole; imports objects, and no other sub-room."""
