"""Entmax attention of queries to keys."""
