"""Novel classes: clusters, their number, and metrics. Arrays in, arrays out."""
