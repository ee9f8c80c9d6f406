"""A seeded model of an SM90 device behind the port of a workbench; it measures nothing."""
