"""Where tasks come from: what --tasks may name, published data sets row by row; imports tasks and store."""
