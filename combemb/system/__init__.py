"""Files, the machine, processes, progress, errors and arrays: used by every other room, importing none of them."""
