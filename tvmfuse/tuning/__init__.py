"""Search the decisions of kernel families: propose, build, measure, commit."""
