"""What the checks of all chapters use: running an answer, comparing, judging, explaining."""
