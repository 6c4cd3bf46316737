"""How tvmfuse joins flows that people already have."""
