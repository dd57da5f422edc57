"""What methods have in common: their interface, the training loop, batches, image input, settings and run folders."""
