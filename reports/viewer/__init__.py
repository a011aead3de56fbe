"""A run in the browser: pages made on request, from locked SQL; the only room that listens."""
