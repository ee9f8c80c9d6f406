"""Sources of ideas: the contract and its backends."""
