"""What the checks of all chapters share: running an answer, comparing, judging, saying why."""
