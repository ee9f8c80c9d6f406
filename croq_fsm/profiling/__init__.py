"""Profiler runs, report reading and classification."""
