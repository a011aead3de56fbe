"""What is stored, where, and how it is written; SQL over it."""
