"""The α-entmax of rows of scores, and its gradient."""
