"""docs/results/mutation.md has no record; its numbers stand where a page says so."""

PAGE = "docs/results/mutation.md"
CLAIMS = []
REASONS = []
