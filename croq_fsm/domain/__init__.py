"""Pure values and rules of the tuner. Nothing in this package does I/O."""
