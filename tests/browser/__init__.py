"""What moves in the course, tried in a real browser: `make browser`."""
