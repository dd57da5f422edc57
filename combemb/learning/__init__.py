"""What methods share: their interface, the training loop, batches, image input, settings and run folders."""
