"""servelab summary: a run's metrics as servelab, vLLM, GuideLLM, AIPerf or MLPerf define them."""
