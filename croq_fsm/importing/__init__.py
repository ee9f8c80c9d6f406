"""Records of prompt-driven harnesses, read as claims: kept, counted, and never believed."""
