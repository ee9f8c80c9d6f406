"""DSL adapters and the one place that starts child processes."""
