"""The rewrites that make a module canonical, one concern per file."""
