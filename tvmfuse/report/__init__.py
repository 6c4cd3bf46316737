"""Turn what the compiler decided and measured into something to read."""
