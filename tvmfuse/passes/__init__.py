"""Graph-level passes, in the order of the pipeline."""
