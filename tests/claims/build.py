"""docs/results/build.md has no record; its numbers stand where a page says so."""

PAGE = "docs/results/build.md"
CLAIMS = []
REASONS = []
