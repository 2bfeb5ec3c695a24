"""Tasks. They know nothing of each other and import `contmax_lab.contract` and helpers; the registry finds them."""
