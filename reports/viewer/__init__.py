"""A run in the browser: pages made as they are asked for, from locked SQL; the only room that listens."""
