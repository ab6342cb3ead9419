"""Checks of the checks: mutants planted one at a time, the matrix of who notices them, and what weak checks miss."""
