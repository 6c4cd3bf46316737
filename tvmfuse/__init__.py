"""tvmfuse: plan, fuse, schedule and tune subgraphs for Apache TVM."""
