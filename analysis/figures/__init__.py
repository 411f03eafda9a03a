"""One module per figure: draw(results, out) -> paths of what it wrote into the folder `out`."""
