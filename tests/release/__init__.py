"""What a release must pass: `python -m tests.release`, as ``make release-check``."""
