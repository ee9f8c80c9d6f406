"""A session for other programs and other people: kernel, report, script, trials."""
