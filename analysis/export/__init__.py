"""servelab export: a run in the formats of other tools."""
