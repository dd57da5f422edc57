"""Files, the machine, processes, progress and errors: what every other room uses, and what imports none of them."""
