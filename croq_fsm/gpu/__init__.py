"""Device identity, lease, contention and health, always asked through child processes."""
