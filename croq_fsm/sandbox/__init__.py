"""Confining children that hold foreign code.

``confine`` and what it imports run in the child itself, between fork and exec, and use the
standard library only. ``policy``, ``levels`` and ``probe`` run in the daemon.
"""
