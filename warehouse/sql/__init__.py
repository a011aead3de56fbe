"""The one door to DuckDB: views and macros as text, and the files they read; imports store and tasks."""
