"""What the commands in tools/ share: chapters, notebooks and their cells, what is shipped."""
