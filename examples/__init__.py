"""Programs that use fdbqueue. They are part of the repository, not of the installed package."""
