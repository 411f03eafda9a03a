"""Results to figures: reads results/<spec id>/collected.h5, draws with matplotlib."""
