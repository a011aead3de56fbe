"""A run in an object store: the one door to obstore; imports store."""
