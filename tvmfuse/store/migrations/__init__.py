"""The steps that bring a store from one schema to the next, run by alembic."""
