"""Host harness programs, verification, timing and statistics."""
