"""What builds the documentation site: `python -m docs.site`. Its pages are the Markdown files of the repository."""
