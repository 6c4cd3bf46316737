"""What must not harm a tuning store, and a PostgreSQL server to try it on."""
