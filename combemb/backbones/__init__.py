"""What turns inputs into the features that a method's head sees."""
