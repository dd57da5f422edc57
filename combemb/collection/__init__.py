"""The items of a run folder: indexed, discovered, sorted into folders."""
