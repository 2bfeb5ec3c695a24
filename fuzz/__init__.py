"""Hostile inputs for every public function, for as long as you like: `make fuzz MINUTES=60`, or `python -m fuzz`."""
