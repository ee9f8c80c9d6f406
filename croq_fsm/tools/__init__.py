"""The protocol's harness tools: rounds driven by hand, on the engine and database of the daemon."""
