"""`servelab train`: from simulated placements of adapters to the models that place them (placement
paper, 6)."""
