"""Task files, the synthetic generator, augmentation of grids; imports store.errors."""
